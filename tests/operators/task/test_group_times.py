"""Clocks as a program sees them: instants that are far away, and a clock that has gone back."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import StringType, StructType

from pyspark_ckpt.operators import Timers
from pyspark_ckpt.operators.bound.timers import BoundTimers
from pyspark_ckpt.operators.declarations.operator import Input, KeyedOperator, ProcessorState
from pyspark_ckpt.operators.declarations.processors import VectorContext, find_states
from pyspark_ckpt.operators.declarations.states import Declared, ValueState
from pyspark_ckpt.operators.encoding.distinct_keys import Keys
from pyspark_ckpt.operators.encoding.suffixes import Suffixes
from pyspark_ckpt.operators.groups.frames import Conversion
from pyspark_ckpt.operators.groups.function import make_processor
from pyspark_ckpt.operators.session.told_operators import NO_WATERMARK, Clocks
from pyspark_ckpt.operators.task.group_times import MAX_AHEAD_MS, GroupTimes, require_present
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.spark_groups import NO_TIME_OUT, GroupTimesRow
from tests.labs.session_lab import LONG, Kinds, SessionLab, suffix_of
from tests.operators.bound.test_timers import fire

FIRED_MS = 1_700_000_015_000
BEHIND_MS = FIRED_MS - 15_000
SECOND_MS = 1000
HOW = Conversion(
    "UTC",
    checks_casts=False,
    columns_by_name=True,
    prefers_integer_types=False,
    coerces_integers_to_decimals=False,
    rows_at_once=100,
)
SEEN = StructType().add("seen", StringType())


def operator_of(declared: Mapping[str, Declared], *, has_watermark: bool) -> KeyedOperator:
    rows = pa.schema([("user", pa.string())])
    states = tuple(ProcessorState(attribute, state, {}) for attribute, state in declared.items())
    return KeyedOperator(
        uid="it",
        inputs=(Input("", ("user",), rows),),
        output=rows,
        states=states,
        partitions=1,
        max_parallelism=8,
        local_dir="",
        has_watermark=has_watermark,
        memory_bytes=1 << 20,
    )


def test_the_program_is_told_the_clock_of_its_timers_when_that_has_gone_back(tmp_path: Path) -> None:
    lab = SessionLab(tmp_path, {"tick": (Timers("tick", clock="processing"), {})})
    operator = operator_of({"tick": Timers("tick", clock="processing")}, has_watermark=True)
    state = GroupTimesRow(70_000, FIRED_MS), Clocks(60_000, BEHIND_MS, NO_WATERMARK)
    times = GroupTimes(operator, *state)
    assert (times.processing_ms, times.watermark_ms) == (FIRED_MS, 70_000)
    assert times.now_ms == {"processing": FIRED_MS, "event": 70_000}
    batch, states = lab.begin(times.now_ms, times.fired_ms)
    batch.at("user 1")
    states["tick"].register(times.processing_ms + 10 * SECOND_MS)
    assert list(islice(fire(batch, [states["tick"]]), 3)) == []
    batch.stage()
    lab.commit(batch)
    again = GroupTimesRow(70_000, FIRED_MS), Clocks(80_000, FIRED_MS + 5, NO_WATERMARK)
    times = GroupTimes(operator, *again)
    assert (times.processing_ms, times.watermark_ms) == (FIRED_MS + 5, 80_000)
    lab.close()


def test_timers_fire_again_when_a_batch_was_planned_by_a_clock_that_was_far_ahead(tmp_path: Path) -> None:
    lab = SessionLab(tmp_path, {"tick": (Timers("tick", clock="processing"), {})})
    operator = operator_of({"tick": Timers("tick", clock="processing")}, has_watermark=False)
    ahead_ms = 4_070_908_800_000  # in 2099

    def call(stored_ms: int, batch_ms: int, at_ms: int) -> tuple[GroupTimes, list[str]]:
        state = GroupTimesRow(0, stored_ms), Clocks(-1, batch_ms, NO_WATERMARK)
        times = GroupTimes(operator, *state)
        batch, states = lab.begin(times.now_ms, times.fired_ms)
        batch.at("user 1")
        states["tick"].register(at_ms)
        found = [each.timer.namespace for each, _ in fire(batch, [states["tick"]])]
        batch.stage()
        times.end([states["tick"]])
        lab.commit(batch)
        assert times.new_row is not None
        assert times.new_row[:2] == (0, times.processing_ms)
        return times, found

    times, found = call(FIRED_MS, ahead_ms, ahead_ms - 1)
    assert (times.is_behind, found) == (False, [""])
    times, found = call(ahead_ms, FIRED_MS, FIRED_MS + SECOND_MS)
    assert (times.is_behind, times.processing_ms, found) == (True, FIRED_MS, [])
    assert "planned at 2099-01-01 00:00:00 UTC" in times.describe_behind()
    assert "processing time goes back to 2023-11-14" in times.describe_behind()
    times, found = call(FIRED_MS, FIRED_MS + 2 * SECOND_MS, FIRED_MS + 3 * SECOND_MS)
    assert (times.is_behind, found) == (False, [""])
    lab.close()


def test_a_clock_stands_still_for_a_day_at_most() -> None:
    operator = operator_of({"tick": Timers("tick", clock="processing")}, has_watermark=False)
    for ahead_ms, stands in ((0, False), (1, True), (MAX_AHEAD_MS, True), (MAX_AHEAD_MS + 1, False)):
        state = GroupTimesRow(0, FIRED_MS + ahead_ms), Clocks(-1, FIRED_MS, NO_WATERMARK)
        times = GroupTimes(operator, *state)
        assert times.is_behind == (ahead_ms > 0)
        assert times.processing_ms == FIRED_MS + (ahead_ms if stands else 0)
        assert ("stands still" in times.describe_behind()) == stands or not ahead_ms


def test_a_batch_is_refused_when_its_time_is_far_in_the_future() -> None:
    now_ms = time.time_ns() // 1_000_000
    require_present(now_ms + MAX_AHEAD_MS - SECOND_MS, "it", 7)
    with pytest.raises(InvalidInputError, match=r"it: batch 7 was planned at .* by a clock that is 2 days") as seen:
        require_present(now_ms + 2 * MAX_AHEAD_MS + 60 * SECOND_MS, "it", 7)
    assert "delete the entry 7 from the folder offsets" in str(seen.value.hint)
    with pytest.raises(InvalidInputError, match="9,000,000,000,000,000 ms after 1970"):
        require_present(9_000_000_000_000_000, "it", 7)


@pytest.mark.parametrize("watermark_ms", [-1, 60_000])
def test_spark_is_asked_to_call_when_its_own_clock_reaches_the_timer(watermark_ms: int, tmp_path: Path) -> None:
    lab = SessionLab(tmp_path, {"tick": (Timers("tick", clock="processing"), {})})
    operator = operator_of({"tick": Timers("tick", clock="processing")}, has_watermark=watermark_ms >= 0)
    state = GroupTimesRow(0, FIRED_MS), Clocks(watermark_ms, BEHIND_MS, NO_WATERMARK)
    times = GroupTimes(operator, *state)
    assert times.watermark_ms == watermark_ms
    batch, states = lab.begin(times.now_ms, times.fired_ms)
    batch.at("user 1")
    states["tick"].register(FIRED_MS + 10 * SECOND_MS)
    batch.stage()
    times.end([states["tick"]])
    assert times.new_row == (max(0, watermark_ms), FIRED_MS, FIRED_MS + 10 * SECOND_MS - 1)
    batch.abort()
    lab.close()


def test_spark_is_asked_to_call_at_the_next_trigger_only_while_a_timer_of_event_time_waits(tmp_path: Path) -> None:
    declared: dict[str, Declared] = {
        "tick": Timers("tick", clock="processing"),
        "due": Timers("due", clock="event"),
    }
    lab = SessionLab(tmp_path, {name: (timers, {}) for name, timers in declared.items()})
    operator = operator_of(declared, has_watermark=True)

    def call(work: Callable[[dict[str, Any]], None]) -> int:
        state = GroupTimesRow(0, 0), Clocks(60_000, FIRED_MS, NO_WATERMARK)
        times = GroupTimes(operator, *state)
        batch, states = lab.begin(times.now_ms, times.fired_ms)
        batch.at("user 1")
        work(states)
        batch.stage()
        times.end([states["tick"], states["due"]])
        lab.commit(batch)
        assert times.new_row is not None
        return times.new_row.time_out_ms

    assert call(lambda _states: None) == NO_TIME_OUT
    assert call(lambda states: states["tick"].register(FIRED_MS + SECOND_MS)) == FIRED_MS + SECOND_MS - 1
    assert call(lambda states: states["due"].register(90_000)) == FIRED_MS + 1
    assert call(lambda states: states["due"].delete(90_000)) == FIRED_MS + SECOND_MS - 1
    lab.close()


class FunctionLab:
    """A function of applyInPandasWithState with one key, batch by batch."""

    def __init__(self, folder: Path, call: Callable[[GroupState], Any], time_out: str) -> None:
        """``call``: what the function does with its state."""

        def function(_key: Any, _frames: Any, state: GroupState) -> Iterator[pd.DataFrame]:  # noqa: ANN401
            self.calls.append((state.hasTimedOut, state.getCurrentProcessingTimeMs()))
            call(state)
            return iter(())

        kinds: dict[str, Kinds] = {
            "state": {"value": pa.struct([("n", LONG)])},
            "time-out": {"value": LONG},
            "time-outs": {},
        }
        self.calls: list[tuple[bool, int]] = []
        self.time_out = time_out
        self.processor = make_processor(function, ValueState("state", "n long"), SEEN, time_out, HOW, ["user"])
        self.declared = find_states(self.processor)
        self.lab = SessionLab(folder, {each.name: (each, kinds[each.name]) for each in self.declared.values()})

    def run(self, fired: tuple[int, int] | None, now_ms: int, *, has_rows: bool) -> GroupTimesRow:
        """One batch at ``now_ms`` of the query's clock; the partition's row of clocks after it."""
        has_watermark = self.time_out == "EventTimeTimeout"
        clocks = Clocks(now_ms if has_watermark else NO_WATERMARK, now_ms, NO_WATERMARK)
        row = None if fired is None else GroupTimesRow(*fired)
        times = GroupTimes(operator_of(self.declared, has_watermark=has_watermark), row, clocks)
        batch, bound = self.lab.begin(times.now_ms, times.fired_ms)
        for attribute, each in self.declared.items():
            vars(self.processor)[attribute] = bound[each.name]
        users, position = pa.table({"user": ["a"]}), np.array([0])
        ctx = VectorContext(
            0, 0, times.processing_ms, times.watermark_ms, Keys(users, Suffixes([suffix_of("a")])), position
        )
        if has_rows:
            self.processor.process_batch(ctx, users)
        timers = [each for each in batch.bound if isinstance(each, BoundTimers)]
        for _ in islice(fire(batch, timers), 5):
            self.processor.process_timers(ctx, users)
        batch.stage()
        times.end(timers)
        self.lab.commit(batch)
        assert times.new_row is not None
        return times.new_row


def test_a_duration_that_is_set_again_comes_once_when_the_clock_has_gone_back(tmp_path: Path) -> None:
    lab = FunctionLab(tmp_path, lambda state: state.setTimeoutDuration(10 * SECOND_MS), "ProcessingTimeTimeout")
    lab.run((0, FIRED_MS), BEHIND_MS, has_rows=True)
    assert lab.calls == [(False, FIRED_MS)]
    lab.run((0, FIRED_MS), FIRED_MS + 10 * SECOND_MS, has_rows=False)
    assert lab.calls[1:] == []
    lab.run((0, FIRED_MS + 10 * SECOND_MS), FIRED_MS + 10 * SECOND_MS + 1, has_rows=False)
    assert lab.calls[1:] == [(True, FIRED_MS + 10 * SECOND_MS + 1)]
    lab.lab.close()


@pytest.mark.parametrize(
    ("time_out", "call"),
    [
        ("EventTimeTimeout", lambda state: state.setTimeoutTimestamp(sys.maxsize)),
        ("ProcessingTimeTimeout", lambda state: state.setTimeoutDuration(sys.maxsize)),
    ],
)
def test_a_time_out_at_the_end_of_time_never_comes_and_can_be_set_again(
    time_out: str, call: Callable[[GroupState], Any], tmp_path: Path
) -> None:
    lab = FunctionLab(tmp_path, call, time_out)
    fired = None
    for now_ms in (FIRED_MS, FIRED_MS + 1, 1 << 52):
        row = lab.run(fired, now_ms, has_rows=True)
        fired = row[:2]
        assert now_ms < row.time_out_ms < 1 << 63
        assert lab.lab.stored_rows("time-outs") == 1
    assert [timed_out for timed_out, _ in lab.calls] == [False, False, False]
    lab.lab.close()
