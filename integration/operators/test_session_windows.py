"""Session windows: fixed and dynamic gaps, merged before and after the shuffle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as f

from integration.operators import inputs
from integration.operators.providers import CHECKPOINT_FORMAT
from integration.operators.replay import Case
from integration.sample import sampled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from integration.operators.conftest import Compare

_EVENTS = (inputs.events(seed=7),)
_EARLY_MERGE = {"spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition": "true"}
_GAP = "case when user = 1 then '30 seconds' when user is null then '8 minutes' else '3 minutes' end"


def _sessions(frames: Sequence[DataFrame], *keys: str, gap: Column | str = "2 minutes") -> DataFrame:
    timely = frames[0].withWatermark("at", "10 minutes")
    grouped = timely.groupBy(f.session_window("at", gap), *keys)
    return grouped.agg(f.count("*").alias("rows"), f.sum("amount"), f.collect_list("id"))


def _sessions_for_ever(frames: Sequence[DataFrame]) -> DataFrame:
    return frames[0].groupBy(f.session_window("at", "2 minutes"), "user").agg(f.count("*").alias("rows"))


CASES = {
    "one key": Case(lambda frames: _sessions(frames, "user"), _EVENTS),
    "two keys": Case(lambda frames: _sessions(frames, "user", "word", gap="10 minutes"), _EVENTS),
    "dynamic gap": Case(lambda frames: _sessions(frames, "user", gap=f.expr(_GAP)), _EVENTS),
    "merged before the shuffle": Case(lambda frames: _sessions(frames, "user"), _EVENTS, "append", _EARLY_MERGE),
    "without watermark, complete": Case(_sessions_for_ever, _EVENTS, "complete", {CHECKPOINT_FORMAT: "1"}),
}


_LEFT_OUT = {"one key"}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", sampled(CASES, _LEFT_OUT))
def test_session_windows_equal_sparks_when_replayed_with_a_restart(name: str, compare: Compare) -> None:
    compare(CASES[name])
