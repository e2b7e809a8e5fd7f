"""Stateful operators after one another, as far as Spark 4.3 allows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupStateTimeout

from integration.operators import inputs
from integration.operators.replay import Case, StateView
from integration.operators.test_grouped_python import totals
from integration.sample import sampled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

    from integration.operators.conftest import Compare

_REPEATS = (inputs.repeats(seed=12),)
_SIDES = (inputs.one_side(seed=13), inputs.one_side(seed=14))
_NEAR = "l.key = r.key and l.at between r.at - interval 4 minutes and r.at + interval 6 minutes"


def _operators(count: int) -> tuple[StateView, ...]:
    return tuple(StateView({"operatorId": str(number)}) for number in range(count))


# Spark numbers the operators from the sink to the sources.
_JOIN_LAST = (
    StateView({"operatorId": "0", "joinSide": "left"}),
    StateView({"operatorId": "0", "joinSide": "right"}),
    StateView({"operatorId": "1"}),
)
_JOIN_FIRST = (
    StateView({"operatorId": "0"}),
    StateView({"operatorId": "1", "joinSide": "left"}),
    StateView({"operatorId": "1", "joinSide": "right"}),
)


def _timely(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("at", "5 minutes")


def _deduplicated_windows(frames: Sequence[DataFrame]) -> DataFrame:
    fresh = _timely(frames[0]).dropDuplicates(["id", "at"])
    return fresh.groupBy(f.window("at", "5 minutes"), "user").agg(f.count("*"), f.sum("amount"))


def _windows_of_windows(frames: Sequence[DataFrame]) -> DataFrame:
    small = _timely(frames[0]).groupBy(f.window("at", "2 minutes"), "user").agg(f.count("*").alias("rows"))
    large = small.groupBy(f.window("window", "6 minutes"), "user")
    return large.agg(f.sum("rows"), f.max("rows"))


def _windows_of_sessions(frames: Sequence[DataFrame]) -> DataFrame:
    sessions = _timely(frames[0]).groupBy(f.session_window("at", "1 minute"), "user").agg(f.count("*").alias("rows"))
    return sessions.groupBy(f.window(f.window_time("session_window"), "10 minutes")).agg(f.sum("rows"), f.count("*"))


def _joined(frames: Sequence[DataFrame], join_type: str) -> DataFrame:
    left, right = (_timely(frame) for frame in frames)
    joined = left.alias("l").join(right.alias("r"), f.expr(_NEAR), join_type)
    return joined.select("l.at", "l.key", f.col("r.number").alias("other"))


def _windows_of_a_join(frames: Sequence[DataFrame]) -> DataFrame:
    joined = _joined(frames, "leftOuter")
    return joined.groupBy(f.window("at", "5 minutes")).agg(f.count("*"), f.count("other"), f.sum("key"))


def _join_of_windows(frames: Sequence[DataFrame]) -> DataFrame:
    counted = _timely(frames[0]).groupBy(f.window("at", "5 minutes"), "key").agg(f.count("*").alias("rows"))
    plain = _timely(frames[1]).select("tag", "number", "key", f.window("at", "5 minutes").alias("window"))
    return counted.join(plain, ["window", "key"])


def _join_of_deduplicated(frames: Sequence[DataFrame]) -> DataFrame:
    left = _timely(frames[0]).dropDuplicatesWithinWatermark(["key", "tag"])
    return left.alias("l").join(_timely(frames[1]).alias("r"), f.expr(_NEAR)).select("l.*", "r.number")


def _groups_of_deduplicated(frames: Sequence[DataFrame]) -> DataFrame:
    return totals(frames[0].dropDuplicates(["id"]))


def _windows_of_groups(frames: Sequence[DataFrame]) -> DataFrame:
    seen = (
        frames[0]
        .groupBy("user")
        .applyInPandasWithState(
            _newest, "user int, newest timestamp", "newest timestamp", "append", GroupStateTimeout.NoTimeout
        )
    )
    late = seen.withWatermark("newest", "5 minutes")
    return late.groupBy(f.window("newest", "5 minutes")).agg(f.count("*"), f.sum("user"))


def _newest(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    newest = max(frame["at"].max() for frame in frames)
    if state.exists:
        newest = max(newest, pd.Timestamp(state.get[0]))
    state.update((newest.to_pydatetime(),))
    yield pd.DataFrame({"user": [key[0]], "newest": [newest]})


CASES = {
    "windows after a deduplication": Case(_deduplicated_windows, _REPEATS, state=_operators(2)),
    "windows of windows": Case(_windows_of_windows, _REPEATS, state=_operators(2)),
    "windows of sessions": Case(_windows_of_sessions, _REPEATS, state=_operators(2)),
    "windows of a join": Case(_windows_of_a_join, _SIDES, state=_JOIN_FIRST),
    "a join of windows": Case(_join_of_windows, _SIDES, state=_JOIN_LAST),
    "a join after a deduplication": Case(_join_of_deduplicated, _SIDES, state=_JOIN_LAST),
    "python groups after a deduplication": Case(_groups_of_deduplicated, _REPEATS, "update", state=_operators(2)),
    "windows of python groups": Case(_windows_of_groups, _REPEATS, state=_operators(2)),
}


_LEFT_OUT = {
    "windows of windows",
    "windows of sessions",
    "windows of python groups",
    "a join of windows",
    "a join after a deduplication",
    "windows after a deduplication",
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", sampled(CASES, _LEFT_OUT))
def test_chain_equals_sparks_when_replayed_with_a_restart(name: str, compare: Compare) -> None:
    compare(CASES[name])
