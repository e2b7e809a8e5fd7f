"""Several keyed operators in a query, with Spark's own before and after them, against plain Python."""

from __future__ import annotations

import os
from collections import Counter
from datetime import datetime, timezone
from functools import reduce
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.providers import OURS
from integration.operators.replay import Case, collect_into, run, write_inputs
from integration.operators.sources import Source
from integration.progress import recent_progress
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.options import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

SEEDS = range(int(os.environ.get("CKPT_CHAIN_SEEDS", "3")))
START_S = int(datetime(2024, 3, 1, tzinfo=timezone.utc).timestamp())
FAR_S = START_S + 1_000_000
"""The last events: they move the watermark past all others."""
US = 1_000_000
COLUMNS = "at timestamp, user int, n bigint"

Events = list[tuple[int, int, int]]
"""Second, user and number."""


def _instant(second: int) -> datetime:
    return datetime.fromtimestamp(second, timezone.utc)


def _second(at: datetime) -> int:
    return int(at.replace(tzinfo=at.tzinfo or timezone.utc).timestamp())


class Sums(ckpt.KeyedProcessor):
    """Sums of periods. A timer outputs each when its period has ended, for the next operator's key."""

    sums = ckpt.MapState("sums", "bigint", "bigint")
    due = ckpt.Timers("due", clock="event")

    def __init__(self, period_s: int, keys: int) -> None:
        self.period_s, self.keys = period_s, keys

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> None:  # noqa: ANN401
        for row in rows:
            end = _second(row.at) // self.period_s * self.period_s + self.period_s
            self.sums.put(end, (self.sums.get(end) or 0) + row.n)
            self.due.register(_instant(end))

    def on_timer(self, _ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        end = timer.at_us // US
        total = self.sums.get(end)
        self.sums.remove(end)
        yield timer.at, key.user % self.keys, total


class SumsByBothClocks(Sums):
    """The same, where Spark's time-outs are those of processing time."""

    unused = ckpt.Timers("unused", clock="processing")


def _sum(events: Iterable[tuple[int, int, int]], period_s: int, keys: int) -> Events:
    """What Sums outputs once all periods have ended."""
    sums: Counter[tuple[int, int]] = Counter()
    for second, user, number in events:
        sums[second // period_s * period_s + period_s, user] += number
    return [(end, user % keys, total) for (end, user), total in sums.items()]


class Chain:
    """A random query of two or three keyed operators and one of Spark, and what it must output."""

    def __init__(self, seed: int) -> None:
        choose = Random(seed)
        self.choose = choose
        periods = [choose.choice([7, 10, 60, 61]) for _ in range(choose.choice([2, 3]))]
        self.steps = [(period, choose.choice([2, 3, 7]), choose.choice([Sums, SumsByBothClocks])) for period in periods]
        self.first = choose.choice(["", "distinct"])
        self.last_s = choose.choice([30, 100])
        second, self.batches = START_S, []
        for _ in range(choose.randint(4, 7)):
            second += choose.randint(1, 90)
            size = choose.choice([0, 1, 20])
            rows = [
                (second + choose.randint(-9, 9), choose.randrange(20), choose.randrange(100)) for _ in range(size + 1)
            ]
            self.batches.append(rows + (rows[:3] if self.first else []))
        # The second one makes a batch with that watermark: with timers in processing time there is none without rows.
        self.batches += [[(FAR_S, 0, 0)], [(FAR_S + 1, 0, 0)]]
        self.ends = sorted({*choose.sample(range(1, len(self.batches)), choose.randint(0, 2)), len(self.batches)})

    def query(self, frames: Sequence[DataFrame]) -> DataFrame:
        frame = frames[0].withWatermark("at", "20 seconds")
        if self.first:
            frame = frame.dropDuplicates(["at", "user", "n"])
        for number, (period_s, keys, kind) in enumerate(self.steps):
            stream = ckpt.keyed(frame, "user", uid=f"step {number}")
            frame = stream.process(kind(period_s, keys), COLUMNS, "append", event_time="at", late_output="fail")
        windows = frame.groupBy(f.window("at", f"{self.last_s} seconds"), "user").agg(f.sum("n").alias("n"))
        return windows.select(f.col("window.end").alias("at"), "user", "n")

    def expect(self) -> Events:
        """Rows of all windows that have ended, that is, all but those of the last events."""
        events = [event for batch in self.batches for event in batch]
        if self.first:
            events = list(dict.fromkeys(events))
        for period_s, keys, _ in self.steps:
            events = _sum(events, period_s, keys)
        return [row for row in _sum(events, self.last_s, 1 << 30) if row[0] < FAR_S]


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", SEEDS)
def test_a_chain_outputs_what_plain_python_does(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    chain = Chain(seed)
    batches = tuple(tuple((_instant(at), user, n) for at, user, n in batch) for batch in chain.batches)
    case = Case(chain.query, (Source(COLUMNS, batches),))
    session = OURS.session(spark, **{SHUFFLE_PARTITIONS: str(chain.choose.choice([1, 2, 3]))})
    found: Events = []

    def collect(frame: DataFrame, _batch: int) -> None:
        found.extend((_second(row.at), row.user, row.n) for row in frame.collect())

    begin = 0
    for end in chain.ends:
        write_inputs(case, tmp_path, begin, end)
        run(session, case, tmp_path, collect)
        begin = end
    assert sorted(found) == sorted(chain.expect())


class Seen(ckpt.KeyedProcessor):
    """Counts the rows of a user, and outputs the count with each row."""

    count = ckpt.ValueState("count", "bigint", default=0)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        for row in rows:
            self.count.update(self.count.value() + 1)
            yield row.at, key.user, self.count.value()


def _seen(frame: DataFrame, uid: str, mode: str = "append", **more: Any) -> DataFrame:  # noqa: ANN401
    return ckpt.keyed(frame, "user", uid=uid).process(Seen(), COLUMNS, mode, **more)


_FEW = Source(COLUMNS, tuple(((_instant(START_S + 100 * n), n % 2, n),) for n in range(6)))


def _play(spark: SparkSession, query: Callable[[DataFrame], DataFrame], mode: str, folder: Path) -> list[Any]:
    """All output over two runs."""
    case = Case(lambda frames: query(frames[0]), (_FEW,), output_mode=mode)
    found: list[Any] = []
    for first, last in ((0, 3), (3, 6)):
        write_inputs(case, folder, first, last)
        run(OURS.session(spark), case, folder, lambda frame, _: found.extend(map(tuple, frame.collect())))
    return sorted(found)


def test_operators_beside_one_another_have_states_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    def both(frame: DataFrame) -> DataFrame:
        left = _seen(frame, "left", "update").select("user", "n", f.lit("left"))
        return left.union(_seen(_seen(frame, "first", "update"), "second", "update").select("user", "n", f.lit("x")))

    expected = [(user, n, side) for side in ("left", "x") for user in (0, 1) for n in (1, 2, 3)]
    assert _play(spark, both, "update", tmp_path) == sorted(expected)


def test_the_outputs_of_two_operators_are_joined(spark: SparkSession, tmp_path: Path) -> None:
    def join(frame: DataFrame) -> DataFrame:
        timed = frame.withWatermark("at", "1 second")
        left, right = _seen(timed, "left", event_time="at"), _seen(timed, "right", event_time="at")
        return left.join(right.withColumnRenamed("n", "other"), ["at", "user"]).select("user", "n", "other")

    assert _play(spark, join, "append", tmp_path) == [(user, n, n) for user in (0, 1) for n in (1, 2, 3)]


def test_operators_that_key_one_frame_by_the_same_columns_both_have_its_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    def join(frame: DataFrame) -> DataFrame:
        timed = frame.withWatermark("at", "1 second")
        left, right = (
            ckpt.keyed(timed, "user", uid=uid).process(Sums(10, 2), COLUMNS, "append", event_time="at")
            for uid in ("left", "right")
        )
        return left.join(right.withColumnRenamed("n", "other"), ["at", "user"]).select("user", "n", "other")

    assert _play(spark, join, "append", tmp_path) == sorted((n % 2, n, n) for n in range(5))


def test_an_operator_comes_after_windows_and_before_deduplication(spark: SparkSession, tmp_path: Path) -> None:
    def chain(frame: DataFrame) -> DataFrame:
        windows = frame.withWatermark("at", "1 second").groupBy(f.window("at", "50 seconds"), "user").count()
        rows = windows.select(f.window_time("window").alias("at"), "user", f.col("count").alias("n"))
        return _seen(rows, "after").select("user", "n").dropDuplicates(["n"])

    found = _play(spark, chain, "append", tmp_path)
    assert [n for _, n in found] in ([1, 2], [1, 2, 3]), "one row for each count, of either user"


def test_rows_that_stay_are_counted_in_the_mode_complete(spark: SparkSession, tmp_path: Path) -> None:
    found = _play(spark, lambda frame: _seen(frame, "it").groupBy("user").count(), "complete", tmp_path)
    assert found[-1] == (1, 3)
    assert max(count for _, count in found) == 3


def _spark_function(frame: DataFrame) -> DataFrame:
    done: DataFrame = frame.groupBy("user").applyInPandasWithState(
        lambda _key, _frames, _state: iter(()), COLUMNS, "n int", "append", "NoTimeout"
    )
    return done


@pytest.mark.parametrize(
    ("query", "mode", "problem"),
    [
        (lambda frame: _seen(_seen(frame, "it"), "it"), "append", "Two operators of this query have the uid 'it'"),
        (
            lambda frame: _seen(_spark_function(frame), "it"),
            "append",
            "keyed(uid='it') comes after applyInPandasWithState of <lambda>, which passes on no watermark",
        ),
        (
            lambda frame: _seen(frame, "it", "update").dropDuplicates(["n"]),
            "update",
            "keyed(uid='it') has the mode 'update', but feeds Spark's Deduplicate, which takes no updates",
        ),
        (
            lambda frame: _seen(_seen(frame, "first", "update"), "second"),
            "append",
            "keyed(uid='first') has the mode 'update', but the query has the output mode 'append'",
        ),
        (
            lambda frame: _seen(frame.groupBy("user").agg(f.max("at").alias("at")), "it"),
            "complete",
            "keyed(uid='it') comes after an aggregation, which outputs a row again whenever it changes",
        ),
        (
            lambda frame: _seen(frame.groupBy("user").agg(f.max("at").alias("at")), "it", "update"),
            "update",
            "because the query has the output mode 'update'",
        ),
    ],
)
def test_what_spark_could_not_run_is_refused_before_it_starts(
    query: Callable[[DataFrame], DataFrame], mode: str, problem: str, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    frame = _FEW.stream(spark, tmp_path / "in")
    with pytest.raises(AnalysisException) as refused:
        query(frame).writeStream.outputMode(mode).option("checkpointLocation", str(tmp_path / "checkpoint")).format(
            "noop"
        ).start()
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"event_time": "At"}, "the output has no column 'At' for event_time. Did you mean 'at'?"),
        ({"event_time": "n"}, "column 'n' of type bigint cannot be the event time of the output"),
        ({"event_time": "at"}, "the output has the event time 'at', but the frame has no watermark"),
        ({"late_output": "drop"}, "late_output must be 'count' or 'fail', got 'drop'"),
    ],
)
def test_an_output_that_has_no_event_time_is_refused(
    more: Any,  # noqa: ANN401
    problem: str,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(InvalidInputError) as refused:
        _seen(_FEW.stream(spark, tmp_path / "in"), "it", **more)
    assert problem in str(refused.value)


def test_two_event_times_after_a_join_are_refused_as_by_sparks_own_operators(
    spark: SparkSession, tmp_path: Path
) -> None:
    _FEW.write(tmp_path / "in", 0, 2)
    timed = _FEW.stream(spark, tmp_path / "in").withWatermark("at", "1 second")
    other = timed.select(f.col("at").alias("other_at"), f.col("user").alias("other"))
    joined = timed.join(other, f.expr("user = other and at = other_at"))
    with pytest.raises(InvalidInputError, match=r"\['at', 'other_at'\] all have an event time") as refused:
        _seen(joined, "it")
    way = "withColumn('other_at', f.col('other_at') + f.expr('interval 0 seconds'))"
    assert way in str(refused.value.hint)
    assert _seen(joined.withColumn("other_at", f.col("other_at") + f.expr("interval 0 seconds")), "it").isStreaming
    assert _seen(joined.drop("other_at"), "it").isStreaming
    own = joined.dropDuplicates(["user"]).writeStream.format("noop")
    with pytest.raises((AnalysisException, StreamingQueryException), match="More than one event time columns"):
        own.option("checkpointLocation", str(tmp_path / "checkpoint")).start().processAllAvailable()


def _beside(*uids: str) -> Callable[[DataFrame], DataFrame]:
    """Operators with these uids in a union."""

    def query(frame: DataFrame) -> DataFrame:
        first, *others = (_seen(frame, uid, "update").select("user", "n", f.lit(uid)) for uid in uids)
        return reduce(DataFrame.union, others, first)

    return query


@pytest.mark.parametrize("allowed", ["false", "true"])
def test_operators_that_were_swapped_or_removed_are_refused_and_the_old_order_goes_on(
    allowed: str, spark: SparkSession, tmp_path: Path
) -> None:
    def play(until: int, query: Callable[[DataFrame], DataFrame]) -> list[tuple[Any, ...]]:
        case = Case(lambda frames: query(frames[0]), (_FEW,), output_mode="update")
        write_inputs(case, tmp_path, 0, until)
        found: list[tuple[Any, ...]] = []
        session = OURS.session(spark, **{f"{PREFIX}allowNonRestoredState": allowed})
        run(session, case, tmp_path, lambda frame, _: found.extend(map(tuple, frame.collect())))
        return sorted(found)

    play(2, _beside("one", "two"))
    with pytest.raises(StreamingQueryException) as refused:
        play(3, _beside("two", "one"))
    told = str(refused.value)
    assert any(
        f"Keyed operator '{uid}', operator {place} of the query, declares ['{uid}/count'], but the checkpoint has "
        f"state ['{other}/count'] of operator {place}. That state is of uid '{other}'." in told
        for uid, other, place in (("two", "one", 0), ("one", "two", 1))
    )
    assert "if some were added, removed or swapped, restore their order" in told
    with pytest.raises(StreamingQueryException, match="STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"):
        play(3, lambda frame: _beside("one", "two")(frame.dropDuplicates()))
    assert play(4, _beside("one", "two")) == [(user, 2, uid) for user in (0, 1) for uid in ("one", "two")]


class WithLate(ckpt.KeyedProcessor):
    """Tells of each row whether it is late."""

    seen = ckpt.ValueState("seen", "bigint", default=0)

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        yield from ((row.at, row.user, row.n) for row in rows)

    def process_late(
        self,
        _ctx: ckpt.Context,
        _key: Any,  # noqa: ANN401
        rows: Sequence[Any],
    ) -> Iterator[Sequence[Any]]:
        yield from ((row.at, row.user, -row.n) for row in rows)


class WithLateAndTimers(WithLate):
    """With timers of event time, for which Spark itself would drop late rows."""

    due = ckpt.Timers("due", clock="event")

    def on_timer(self, _ctx: ckpt.Context, _key: Any, _timer: ckpt.Timer) -> None:  # noqa: ANN401
        """None is registered."""


class WithLateAndBothClocks(WithLateAndTimers):
    """With timers of both clocks, for which Spark drops no late rows."""

    soon = ckpt.Timers("soon", clock="processing")


class VectorWithLate(ckpt.VectorProcessor):
    """The same for all keys at once."""

    seen = ckpt.ValueState("seen", "bigint")

    def process_batch(self, _ctx: ckpt.VectorContext, batch: Any) -> Any:  # noqa: ANN401
        return batch

    def process_late_batch(self, _ctx: ckpt.VectorContext, batch: Any) -> Any:  # noqa: ANN401
        return batch.set_column(2, "n", [[-n for n in batch.column("n").to_pylist()]])


_LATE = Source(
    COLUMNS,
    tuple(
        tuple((_instant(START_S + second), 1, second) for second in batch)
        for batch in ((100,), (200,), (150, 300), (50, 400))
    ),
)
"""In the last batch, the row of second 50 is late: the batch before had the watermark of second 195."""


@pytest.mark.parametrize("processor", [WithLate(), WithLateAndTimers(), WithLateAndBothClocks(), VectorWithLate()])
def test_late_rows_go_to_their_method_and_are_counted(processor: Any, spark: SparkSession, tmp_path: Path) -> None:  # noqa: ANN401
    def query(frames: Sequence[DataFrame]) -> DataFrame:
        timed = frames[0].withWatermark("at", "5 seconds")
        return ckpt.keyed(timed, "user", uid="it").process(processor, COLUMNS, "append")

    case = Case(query, (_LATE,))
    write_inputs(case, tmp_path, 0, 4)
    found: list[tuple[int, int]] = []
    finished = run(
        OURS.session(spark),
        case,
        tmp_path,
        lambda frame, batch: found.extend((batch, row.n) for row in frame.collect()),
    )
    assert sorted(found) == [(0, 100), (1, 200), (2, 150), (2, 300), (3, -50), (3, 400)]
    metrics = [operator.customMetrics for progress in recent_progress(finished) for operator in progress.stateOperators]
    assert [each["ckptLateRows"] for each in metrics][:4] == [0, 0, 0, 1]


def test_output_that_is_late_for_the_next_operator_is_counted_or_refused(spark: SparkSession, tmp_path: Path) -> None:
    """That of WithLate has the time of its rows."""

    def query(late_output: Any) -> Callable[[Sequence[DataFrame]], DataFrame]:  # noqa: ANN401
        def build(frames: Sequence[DataFrame]) -> DataFrame:
            timed = frames[0].withWatermark("at", "5 seconds")
            stream = ckpt.keyed(timed, "user", uid="it")
            return stream.process(WithLate(), COLUMNS, "append", event_time="at", late_output=late_output)

        return build

    case = Case(query("count"), (_LATE,))
    write_inputs(case, tmp_path / "counted", 0, 4)
    finished = run(OURS.session(spark), case, tmp_path / "counted", collect_into({}))
    metrics = [operator.customMetrics for progress in recent_progress(finished) for operator in progress.stateOperators]
    assert [each["ckptLateOutputRows"] for each in metrics][:4] == [0, 0, 0, 1]
    case = Case(query("fail"), (_LATE,))
    write_inputs(case, tmp_path / "refused", 0, 4)
    with pytest.raises(StreamingQueryException) as refused:
        run(OURS.session(spark), case, tmp_path / "refused", collect_into({}))
    told = "Keyed operator 'it' output a row whose event time at is 2024-03-01 00:00:50+00:00"
    assert told in str(refused.value)
    assert "with late_output='count'" in str(refused.value).lower()
