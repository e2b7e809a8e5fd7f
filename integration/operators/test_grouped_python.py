"""``applyInPandasWithState``: its three kinds of time-out, and states of several types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql.streaming.state import GroupStateTimeout

from integration.operators import inputs
from integration.operators.replay import Case, StateView
from integration.sample import sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

    from integration.operators.conftest import Compare

_EVENTS = (inputs.events(seed=11),)
_TOTALS = "user int, rows long, total double, timed_out boolean"


def _totals(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    rows, total = state.get if state.exists else (0, 0.0)
    for frame in frames:
        rows += len(frame)
        total += float(frame["amount"].sum())
    state.update((rows, total))
    yield pd.DataFrame({"user": [key[0]], "rows": [rows], "total": [total], "timed_out": [False]})


def _until_silent(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    if not state.hasTimedOut:
        yield from _totals(key, frames, state)
        state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 4 * 60_000)
        return
    rows, total = state.get
    state.remove()
    yield pd.DataFrame({"user": [key[0]], "rows": [rows], "total": [total], "timed_out": [True]})


def _until_the_next_batch(
    key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    if not state.hasTimedOut:
        yield from _totals(key, frames, state)
        state.setTimeoutDuration(1)
        return
    rows, total = state.get
    state.remove()
    yield pd.DataFrame({"user": [key[0]], "rows": [rows], "total": [total], "timed_out": [True]})


def _only_the_even(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    rows = (state.get[0] if state.exists else 0) + sum(map(len, frames))
    if rows % 2:
        state.update((rows, f"{key[0]} has {rows}", rows / 3))
    elif state.exists:
        state.remove()
    yield pd.DataFrame({"word": [key[0]], "rows": [rows]})


def totals(frame: DataFrame, output_mode: str = "update") -> DataFrame:
    """Rows and sum per user, without time-outs."""
    grouped = frame.groupBy("user")
    return grouped.applyInPandasWithState(
        _totals, _TOTALS, "rows long, total double", output_mode, GroupStateTimeout.NoTimeout
    )


def _timed(function: Callable[..., Any], kind: str) -> Callable[[Sequence[DataFrame]], DataFrame]:
    return lambda frames: (
        frames[0]
        .withWatermark("at", "5 minutes")
        .groupBy("user")
        .applyInPandasWithState(function, _TOTALS, "rows long, total double", "update", kind)
    )


CASES = {
    "without time-out, update": Case(lambda frames: totals(frames[0]), _EVENTS, "update"),
    "without time-out, append": Case(lambda frames: totals(frames[0], "append"), _EVENTS, "append"),
    "state set and removed": Case(
        lambda frames: (
            frames[0]
            .groupBy("word")
            .applyInPandasWithState(
                _only_the_even,
                "word string, rows long",
                "rows long, label string, third double",
                "update",
                GroupStateTimeout.NoTimeout,
            )
        ),
        _EVENTS,
        "update",
    ),
    "event time": Case(_timed(_until_silent, GroupStateTimeout.EventTimeTimeout), _EVENTS, "update"),
    "processing time": Case(
        _timed(_until_the_next_batch, GroupStateTimeout.ProcessingTimeTimeout),
        _EVENTS,
        "update",
        runs=(1, 1, 1, 1),
        one_batch_a_run=True,
        state=(StateView(columns=("key", "value.groupState", "partition_id")),),
    ),
}


_LEFT_OUT = {
    "without time-out, update",
    "without time-out, append",
}


@pytest.mark.parametrize("name", sampled(CASES, _LEFT_OUT))
def test_state_of_python_groups_equals_sparks_when_replayed_with_a_restart(name: str, compare: Compare) -> None:
    compare(CASES[name])
