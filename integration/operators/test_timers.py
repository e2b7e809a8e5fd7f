"""Timers of keyed operators in real queries: batch by batch what a model says, without rows, and after restarts."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta, timezone
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from integration.operators import inputs
from integration.operators.keyed import keyed, play_until
from integration.operators.providers import OURS
from integration.operators.replay import Case, collect_into, run, write_inputs
from integration.operators.sources import Source
from integration.progress import recent_progress
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from integration.operators.replay import Query

_TIED = inputs.events(seed=47, rows=40)
_EVENTS = Source(  # no two rows of one instant, for timers of one instant fire in any order
    _TIED.schema,
    tuple(tuple((*row[:-1], row[-1] + timedelta(milliseconds=row[0])) for row in batch) for batch in _TIED.batches),
)
_DELAY, _WAIT = timedelta(minutes=5), timedelta(minutes=12)
_OUTPUT = "what string, user int, rows bigint, at timestamp, watermark_ms bigint"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_RUNS = ((0, 2), (2, 4))


class Reminders(ckpt.KeyedProcessor):
    """A timer for every row, under its word; a row with an even number takes back the one of its own instant."""

    rows = ckpt.ValueState("rows", "bigint", default=0)
    due = ckpt.Timers("due", clock="event")

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        for row in rows:
            self.due.register(row.at + _WAIT, row.word or "")
        for row in rows:
            if row.id % 2 == 0:
                self.due.delete(row.at + _WAIT, row.word or "")
        self.rows.update(self.rows.value() + len(rows))
        yield "rows", key.user, self.rows.value(), None, ctx.watermark_ms

    def on_timer(self, ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.rows.update(self.rows.value() + 1000)
        yield timer.namespace, key.user, self.rows.value(), timer.at, ctx.watermark_ms


class BothClocks(Reminders):
    """The same in an operator that has time-outs in processing time."""

    wall = ckpt.Timers("wall", clock="processing")


class ReminderColumns(ckpt.VectorProcessor):
    """The same for all keys at once."""

    rows = ckpt.ValueState("rows", "bigint")
    due = ckpt.Timers("due", clock="event")

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        even = pc.equal(pc.bit_wise_and(batch.column("id"), 1), 0).to_numpy(zero_copy_only=False)
        at = pc.add(batch.column("at").combine_chunks(), pa.scalar(_WAIT))
        words = batch.column("word").fill_null("").to_pylist()
        for word in set(words):
            of_word = np.array([each == word for each in words])
            for change, chosen in ((self.due.register_rows, of_word), (self.due.delete_rows, of_word & even)):
                change(ctx.keys, ctx.key_index[chosen], at.filter(pa.array(chosen)), word)
        rows = pc.add(self.rows.get(ctx.keys).fill_null(0), np.bincount(ctx.key_index, minlength=len(ctx.keys)))
        self.rows.put(ctx.keys, rows)
        return self._output(["rows"] * len(rows), ctx.keys.column("user"), rows, [None] * len(rows), ctx.watermark_ms)

    def process_timers(self, ctx: ckpt.VectorContext, timers: pa.Table) -> pa.Table:
        before: dict[int, int] = defaultdict(int)
        seen = []
        for key in ctx.key_index.tolist():
            before[key] += 1000
            seen.append(before[key])
        old = self.rows.get(ctx.keys).fill_null(0)
        self.rows.put(ctx.keys, pc.add(old, 1000 * np.bincount(ctx.key_index, minlength=len(ctx.keys))))
        users = ctx.keys.column("user").take(pa.array(ctx.key_index))
        rows = pc.add(old.take(pa.array(ctx.key_index)), pa.array(seen))
        return self._output(timers.column("namespace"), users, rows, timers.column("at"), ctx.watermark_ms)

    @staticmethod
    def _output(what: Any, user: Any, rows: Any, at: Any, watermark_ms: int) -> pa.Table:  # noqa: ANN401
        instants = at if isinstance(at, pa.ChunkedArray) else pa.array(at, pa.timestamp("us", "UTC"))
        marks = pa.array([watermark_ms] * len(rows), pa.int64())
        return pa.table({"what": what, "user": user, "rows": rows, "at": instants, "watermark_ms": marks})


def model(source: Source, runs: Sequence[tuple[int, int]], *, empty_batches: bool) -> list[set[tuple[Any, ...]]]:
    """What each batch must put out. ``empty_batches``: whether Spark makes them when the watermark has moved."""
    batches: list[set[tuple[Any, ...]]] = [set()]
    count: dict[int | None, int] = defaultdict(int)
    pending: set[tuple[datetime, int | None, str]] = set()
    late = mark = _EPOCH
    newest = _EPOCH + _DELAY

    def millis(at: datetime) -> int:
        return (at - _EPOCH) // timedelta(milliseconds=1)

    def fire() -> None:
        for timer in sorted((each for each in pending if each[0] <= mark), key=itemgetter(0, 2)):
            pending.discard(timer)
            count[timer[1]] += 1000
            batches[-1].add((timer[2], timer[1], count[timer[1]], millis(timer[0]), millis(mark)))

    for first, last in runs:
        for number in range(first, last):
            rows_of: dict[int | None, list[Any]] = defaultdict(list)
            for row_id, user, word, _, at in source.batches[number]:
                if at > late:
                    rows_of[user].append((row_id, at + _WAIT, word or ""))
                newest = max(newest, at)
            for user, rows in rows_of.items():
                pending |= {(at, user, word) for _, at, word in rows}
                pending -= {(at, user, word) for row_id, at, word in rows if row_id % 2 == 0}
                count[user] += len(rows)
                batches[-1].add(("rows", user, count[user], None, millis(mark)))
            fire()
            batches.append(set())
            late, mark = mark, newest - _DELAY
        if empty_batches and late != mark:
            fire()
            batches.append(set())
            late = mark
    return batches[:-1]


def in_millis(query: Query) -> Query:
    """The query with instants as milliseconds."""
    return lambda frames: query(frames).withColumn("at", f.expr("unix_millis(at)"))


def watched(processor: Any) -> Query:  # noqa: ANN401
    return in_millis(
        lambda frames: keyed(processor, _OUTPUT)([frames[0].withWatermark("at", f"{_DELAY.seconds} seconds")])
    )


@pytest.mark.parametrize("processor", [Reminders(), ReminderColumns(), BothClocks()])
def test_event_time_timers_fire_in_the_batch_whose_watermark_has_reached_them(
    processor: Any,  # noqa: ANN401
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    expected = model(_EVENTS, _RUNS, empty_batches=not isinstance(processor, BothClocks))
    assert sum(len(batch) for batch in expected if any(row[3] for row in batch)) > 50
    recorded: dict[int, set[tuple[Any, ...]]] = {}

    def collect(frame: DataFrame, batch_id: int) -> None:
        recorded[batch_id] = set(map(tuple, frame.collect()))

    case = Case(watched(processor), (_EVENTS,), output_mode="update")
    for first, last in _RUNS:
        write_inputs(case, tmp_path, first, last)
        run(OURS.session(spark), case, tmp_path, collect)
    for batch_id, rows in enumerate(expected):
        assert sorted(map(repr, recorded[batch_id])) == sorted(map(repr, rows)), batch_id
    assert len(recorded) == len(expected)


class Echo(ckpt.KeyedProcessor):
    """Timers at three distances from the batch's time."""

    wall = ckpt.Timers("wall", clock="processing")

    def process(self, ctx: ckpt.Context, key: Any, _rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        for name, distance_ms in (("past", -1), ("soon", 1000), ("tomorrow", 86_400_000)):
            self.wall.register(ctx.processing_time_ms + distance_ms, name)
        yield "rows", key.user, None

    def on_timer(self, ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        yield timer.namespace, key.user, ctx.processing_time_ms - timer.at_ms


def test_processing_time_timers_fire_without_rows_and_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    users = Source("user int", (((1,), (2,), (3,)), ((4,),)))
    query = keyed(Echo(), "what string, user int, late_ms bigint")
    fired: list[tuple[str, int, int, int]] = []

    def collect(frame: DataFrame, batch_id: int) -> None:
        fired.extend((row.what, row.user, row.late_ms, batch_id) for row in frame.collect())

    def seen(what: str) -> dict[int, int]:
        return {user: batch_id for name, user, _, batch_id in fired if name == what}

    case = Case(query, (users,), output_mode="update")
    write_inputs(case, tmp_path, 0, 1)
    run(OURS.session(spark), case, tmp_path, collect)  # it ends, with timers that wait
    assert seen("rows") == seen("past") == {1: 0, 2: 0, 3: 0}
    assert len(fired) == 6

    write_inputs(case, tmp_path, 1, 2)
    play_until(lambda: len(seen("soon")) == 4, OURS.session(spark), case, tmp_path, collect)
    assert seen("rows")[4] == 1
    assert set(seen("soon")) == {1, 2, 3, 4}
    assert seen("soon")[4] > 1, "in a batch without rows"
    assert all(late_ms >= 0 for what, _, late_ms, _ in fired if what != "rows")
    assert len(fired) == len(set(fired)) == 4 * 3, "once each, and none of tomorrow"


def test_late_rows_and_fired_timers_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    case = Case(watched(BothClocks()), (_EVENTS,), output_mode="update")
    write_inputs(case, tmp_path, 0, 4)
    finished = run(OURS.session(spark), case, tmp_path, collect_into({}))
    metrics = [operator.customMetrics for progress in recent_progress(finished) for operator in progress.stateOperators]
    expected = model(_EVENTS, ((0, 4),), empty_batches=False)
    assert [each["ckptFiredTimers"] for each in metrics] == [
        sum(row[3] is not None for row in batch) for batch in expected
    ]
    newest = list(accumulate((max(row[-1] for row in batch) for batch in _EVENTS.batches), max))
    batches_behind = zip(newest, _EVENTS.batches[2:], strict=False)
    late = [sum(row[-1] <= mark - _DELAY for row in batch) for mark, batch in batches_behind]
    assert [each["ckptLateRows"] for each in metrics] == [0, 0, *late]
    assert sum(late) > 0


def test_timers_of_event_time_need_a_watermark(spark: SparkSession, tmp_path: Path) -> None:
    frame = _EVENTS.stream(spark, tmp_path)
    with pytest.raises(InvalidInputError, match="Reminders declares event-time timers, but the frame has no watermark"):
        keyed(Reminders(), _OUTPUT)([frame])
