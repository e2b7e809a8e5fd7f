"""``flatMapGroupsWithState``, which only Scala and Java have: in both formats of its state, and with time-outs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.operators import inputs
from integration.operators.replay import Case
from integration.operators.scala_groups import group_query
from integration.sample import sampled

if TYPE_CHECKING:
    from integration.operators.conftest import Compare

_EVENTS = (inputs.events(seed=29, rows=40),)
_FORMAT = "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion"
_OLDER = {_FORMAT: "1", "spark.sql.streaming.stateStore.formatValidation.enabled": "false"}
"""Spark describes the time-outs of the older format as numbers of 32 bits, and writes 64: its check refuses them."""

CASES = {
    "event time, format 2": Case(group_query("untilSilent"), _EVENTS, "append", {_FORMAT: "2"}),
    "event time, format 1": Case(group_query("untilSilent"), _EVENTS, "append", _OLDER),
    "without time-out, format 2": Case(group_query("untilThree"), _EVENTS, "update", {_FORMAT: "2"}),
    "without time-out, format 1": Case(group_query("untilThree"), _EVENTS, "update", _OLDER),
}
_LEFT_OUT = {"without time-out, format 1", "event time, format 1"}


@pytest.mark.parametrize("name", sampled(CASES, _LEFT_OUT))
def test_state_of_scala_groups_equals_sparks_when_replayed_with_a_restart(name: str, compare: Compare) -> None:
    compare(CASES[name])
