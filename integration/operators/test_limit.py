"""Streaming limit: one counter in one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.operators import inputs
from integration.operators.replay import Case, StateView

if TYPE_CHECKING:
    from integration.operators.conftest import Compare

_EVENTS = (inputs.events(seed=10),)

CASES = {
    "reached in the third batch": Case(lambda frames: frames[0].limit(75), _EVENTS),
    "never reached": Case(lambda frames: frames[0].limit(10_000), _EVENTS),
    "after a deduplication": Case(
        lambda frames: frames[0].dropDuplicates(["user", "word"]).limit(30),
        _EVENTS,
        state=(StateView({"operatorId": "0"}), StateView({"operatorId": "1"})),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_limit_equals_sparks_when_replayed_with_a_restart(name: str, compare: Compare) -> None:
    compare(CASES[name])
