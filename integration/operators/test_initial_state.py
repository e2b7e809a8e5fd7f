"""The initial state of keyed operators: in the first batch, once, as plain Python has it."""

from __future__ import annotations

import shutil
from collections import defaultdict
from datetime import datetime, timedelta, timezone
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.providers import OURS
from integration.operators.replay import Case, collect_into, run, write_inputs
from integration.operators.sources import Source
from integration.progress import recent_progress
from integration.savepoints.test_rescale import move
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from integration.operators.replay import Lines

_START = datetime(2024, 3, 1, tzinfo=timezone.utc)
_COLUMNS = "user int, n bigint, at timestamp"
_GIVEN = (  # in another order than the states, and some of narrower types
    "most smallint, total int, seen array<bigint>, user int, words map<string, int>, "
    "mean struct<rows bigint, sum bigint>, last struct<at timestamp, n int>"
)
_OUTPUT = "user int, total bigint, seen array<bigint>"


def _add(kept: Sequence[int], value: int) -> tuple[int, int]:
    return kept[0] + 1, kept[1] + value


class _States:
    """A state of each kind."""

    total = ckpt.ValueState("total", "bigint", default=1000)
    last = ckpt.ValueState("last", "struct<n bigint, at timestamp>")
    seen = ckpt.ListState("seen", "bigint")
    words = ckpt.MapState("words", "string", "bigint")
    most = ckpt.ReducingState("most", "bigint", "max")
    mean: Any = ckpt.AggregatingState(
        "mean", "struct<rows bigint, sum bigint>", create=lambda: (0, 0), add=_add, result=lambda kept: kept
    )
    unused = ckpt.ListState("unused", "string")


class OneByOne(_States, ckpt.KeyedProcessor):
    """Keeps the numbers of a user in states of all kinds."""

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.total.update(self.total.value() + sum(row.n for row in rows))
        self.last.update((rows[-1].n, rows[-1].at))
        self.seen.add_all(row.n for row in rows)
        for row in rows:
            self.words.put(str(row.n % 3), row.n)
            self.most.add(row.n)
            self.mean.add(row.n)
        yield key.user, self.total.value(), list(self.seen.get())


class Columns(_States, ckpt.VectorProcessor):
    """The same for all users at once."""

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        keys, index, n = ctx.keys, ctx.key_index, batch.column("n")
        total = self.total.get(keys).fill_null(1000).to_numpy().copy()
        np.add.at(total, index, n.to_numpy())
        self.total.put(keys, total)
        lasts = [int(np.flatnonzero(index == place)[-1]) for place in range(len(keys))]
        self.last.put(keys, batch.select(["n", "at"]).take(lasts).to_struct_array())
        self.seen.add_rows(keys, index, n)
        self.words.put_entries(keys, index, pa.array([str(each % 3) for each in n.to_pylist()]), n)
        self.most.add_rows(keys, index, n)
        self.mean.add_rows(keys, index, n)
        return pa.table([keys.column("user"), total, self.seen.get_lists(keys)], ["user", "total", "seen"])


class ByHand(ckpt.KeyedProcessor):
    """Makes the states of a user out of any number of rows."""

    total = ckpt.ValueState("total", "bigint", default=0)
    seen = ckpt.ListState("seen", "bigint")
    given = ckpt.MetricCounter("given")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.total.update(self.total.value() + sum(row.n for row in rows))
        self.seen.add_all(row.n for row in rows)
        yield key.user, self.total.value(), list(self.seen.get())

    def process_initial(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        assert (ctx.batch_id, self.seen.exists()) == (0, False)
        self.given.add(len(rows))
        self.total.update(sum(row.total or 0 for row in rows))
        self.seen.add_all(sorted(number for row in rows for number in row.seen or ()))
        yield key.user, -len(rows), None


class ColumnsByHand(ckpt.VectorProcessor):
    """The same for all users at once."""

    total = ckpt.ValueState("total", "bigint", default=0)
    seen = ckpt.ListState("seen", "bigint")
    given = ckpt.MetricCounter("given")

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        total = self.total.get(ctx.keys).fill_null(0).to_numpy().copy()
        np.add.at(total, ctx.key_index, batch.column("n").to_numpy())
        self.total.put(ctx.keys, total)
        self.seen.add_rows(ctx.keys, ctx.key_index, batch.column("n"))
        return pa.table([ctx.keys.column("user"), total, self.seen.get_lists(ctx.keys)], ["user", "total", "seen"])

    def process_initial_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        assert (ctx.batch_id, self.seen.exists_keys(ctx.keys).true_count) == (0, 0)
        self.given.add(len(batch))
        total, seen = np.zeros(len(ctx.keys), np.int64), [list[int]() for _ in range(len(ctx.keys))]
        for place, row in zip(ctx.key_index.tolist(), batch.select(["total", "seen"]).to_pylist(), strict=True):
            total[place] += row["total"] or 0
            seen[place].extend(row["seen"] or ())
        self.total.put(ctx.keys, total)
        self.seen.put_lists(ctx.keys, pa.array(map(sorted, seen), pa.list_(pa.int64())))
        nothing = pa.nulls(len(total), pa.list_(pa.int64()))
        return pa.table([ctx.keys.column("user"), -np.bincount(ctx.key_index), nothing], ["user", "total", "seen"])


_BY_HAND = (ByHand, ColumnsByHand)


class _Life:
    """Random rows, initial states and restarts, which follow from a seed, and the states that must be there then."""

    def __init__(self, seed: int, processor: object) -> None:
        choose = Random(seed)
        self.choose, self.is_by_hand = choose, isinstance(processor, _BY_HAND)
        users = [None, *range(choose.choice([5, 40]))]
        self.partitions = choose.choice([1, 2, 3])
        self.batches = tuple(
            tuple(
                (choose.choice(users), choose.randrange(-50, 50), _START + timedelta(seconds=choose.randrange(9999)))
                for _ in range(choose.randint(1, 30))
            )
            for _ in range(choose.randint(2, 4))
        )
        given = choose.sample(users, len(users) // 2)
        self.given = tuple(map(self._make_given, given * 2 if self.is_by_hand else given))
        self.ends = (choose.randrange(1, len(self.batches)), len(self.batches))

    def _make_given(self, user: int | None) -> tuple[Any, ...]:
        number = self.choose.randrange(-99, 99)
        words = {str(key): number for key in range(self.choose.randrange(5))}
        seen = [self.choose.randrange(9) for _ in range(self.choose.randrange(4))]
        row = [number, number, seen, user, words, (2, number), (_START, number)]
        return tuple(None if self.choose.random() < 0.3 and n != 3 else value for n, value in enumerate(row))

    def states(self) -> dict[str, dict[int | None, Any]]:
        """What each state must hold, by user."""
        found: dict[str, dict[int | None, Any]] = {
            name: {} for name in ("total", "last", "seen", "words", "most", "mean")
        }
        for most, total, seen, user, words, mean, last in self.given:
            if self.is_by_hand:
                found["total"][user] = found["total"].get(user, 0) + (total or 0)
                found["seen"][user] = sorted([*found["seen"].get(user, ()), *(seen or ())])
            else:
                values = (total, last and last[::-1], seen, words, most, mean)
                for name, value in zip(found, values, strict=True):
                    found[name].update({user: value} if value is not None else {})
        for user, number, at in (row for batch in self.batches for row in sorted(batch, key=lambda row: row[1:])):
            found["total"][user] = found["total"].get(user, 0 if self.is_by_hand else 1000) + number
            found["last"][user] = (number, at)
            found["seen"].setdefault(user, []).append(number)
            found["words"].setdefault(user, {})[str(number % 3)] = number
            found["most"][user] = max(found["most"].get(user, number), number)
            found["mean"][user] = _add(found["mean"].get(user, (0, 0)), number)
        kept = ("total", "seen") if self.is_by_hand else tuple(found)
        return {name: {user: each for user, each in found[name].items() if each not in ([], {})} for name in kept}


def _stored(checkpoint: Path, name: str) -> dict[int | None, Any]:
    """What a state holds, by user."""
    found: dict[int | None, Any] = {}
    lists: dict[int | None, list[Any]] = defaultdict(list)
    maps: dict[int | None, dict[Any, Any]] = defaultdict(dict)
    for row in ckpt.reading.open_state(str(checkpoint), uid="it", state=name).to_arrow().to_pylist():
        user, value = row["key"]["user"], row["value"]
        if name == "seen":
            lists[user].append(value)
        elif name == "words":
            maps[user][row["map_key"]] = value
        else:
            found[user] = tuple(value.values()) if isinstance(value, dict) else value
    return found or lists or maps


@pytest.mark.parametrize(
    ("processor", "seed"),
    [(OneByOne(), 0), (OneByOne(), 1), (Columns(), 1), (ByHand(), 0), (ColumnsByHand(), 1)],
    ids=lambda each: each if isinstance(each, int) else type(each).__name__,
)
def test_states_begin_with_the_initial_ones_and_go_on_as_plain_python_does(
    processor: Any,  # noqa: ANN401
    seed: int,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    life = _Life(seed, processor)
    session = OURS.session(spark, **{SHUFFLE_PARTITIONS: str(life.partitions)})
    Source(_GIVEN, (life.given,)).write(tmp_path / "given", 0, 1)
    initial = session.read.parquet(str(tmp_path / "given"))
    batches: dict[int, Lines] = {}
    for begin, end in zip((0, life.ends[0]), life.ends, strict=True):
        given = {"initial_state": initial} if begin == 0 or seed == 0 else {}
        case = Case(_query(processor, **given), (Source(_COLUMNS, life.batches),), "update")
        write_inputs(case, tmp_path, begin, end)
        for progress in recent_progress(run(session, case, tmp_path, collect_into(batches))):
            assert progress.numInputRows == len(life.batches[progress.batchId])
            counted = progress.stateOperators[0].customMetrics.get("it/given", 0)
            assert counted == (len(life.given) if life.is_by_hand and progress.batchId == 0 else 0)
        shutil.rmtree(tmp_path / "given", ignore_errors=True)  # nobody reads it again
    assert sorted(batches) == list(range(len(life.batches)))
    of_given = [line for lines in batches.values() for line in lines if "total=-2, seen=None" in line]
    assert len(of_given) == (len(life.given) // 2 if life.is_by_hand else 0)
    expected = life.states()
    assert {name: _stored(tmp_path / "checkpoint", name) for name in expected} == expected


def _query(processor: Any, **given: Any) -> Callable[[Sequence[DataFrame]], DataFrame]:  # noqa: ANN401
    def build(frames: Sequence[DataFrame]) -> DataFrame:
        return ckpt.keyed(frames[0], "user", uid="it", order_by=["n", "at"]).process(processor, _OUTPUT, **given)

    return build


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_a_first_batch_that_has_failed_begins_with_the_initial_state_again(
    checkpoint_format: int, spark: SparkSession, tmp_path: Path
) -> None:
    session = OURS.in_format(checkpoint_format).session(spark)
    given = session.createDataFrame([(user, 5, [user]) for user in range(20)], "USER int, total int, seen array<int>")
    initial = given.where("user < 9").union(given.where("user >= 9"))
    sources = tuple(Source(_COLUMNS, (((user, 7, _START),), ((user, 8, _START),))) for user in (1, 2))
    batches: dict[int, Lines] = {}
    failed: list[int] = []

    def fail_after_the_first(frame: DataFrame, batch_id: int) -> None:
        collect_into(batches)(frame, batch_id)
        if not failed:
            failed.append(batch_id)
            raise RuntimeError("a sink that is gone")

    query = _query(ByHand(), initial_state=initial)
    case = Case(lambda frames: query([frames[0].union(frames[1])]), sources, "update")
    write_inputs(case, tmp_path, 0, 2)
    with pytest.raises(StreamingQueryException, match="a sink that is gone"):
        run(session, case, tmp_path, fail_after_the_first)
    assert not (tmp_path / "checkpoint" / "commits" / "0").exists()
    run(session, case, tmp_path, fail_after_the_first)
    assert (failed, sorted(batches), len(batches[0])) == ([0], [0, 1], 22)
    assert _stored(tmp_path / "checkpoint", "seen") == {
        user: [user, *([7, 8] if user in (1, 2) else ())] for user in range(20)
    }


def test_a_query_that_was_restored_rescaled_or_changed_gets_no_initial_state_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = Source(_COLUMNS, tuple(((1, n, _START), (2, n, _START)) for n in range(4)))
    batches: dict[int, Lines] = {}
    initial = spark.createDataFrame([(1, [10]), (3, [30])], "user int, seen array<int>")
    other = spark.createDataFrame([(1, [11]), (4, [40])], "user int, seen array<int>")
    for number, (partitions, frame) in enumerate(((2, initial), (3, initial), (2, other), (2, None))):
        session = OURS.session(spark, **{SHUFFLE_PARTITIONS: str(partitions)})
        given = {} if frame is None else {"initial_state": frame}
        case = Case(_query(OneByOne(), **given), (rows,), "update")
        write_inputs(case, tmp_path, number, number + 1)
        run(session, case, tmp_path, collect_into(batches))
        (tmp_path / "checkpoint").rename(tmp_path / "before")
        move(tmp_path, "before", "checkpoint", (3, 2, 2, 1)[number], (None, "native", "canonical", None)[number])
    assert sorted(batches) == [0, 1, 2, 3]
    assert _stored(tmp_path / "checkpoint", "seen") == {1: [10, 0, 1, 2, 3], 2: [0, 1, 2, 3], 3: [30]}


def test_what_is_no_initial_state_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    source = Source(_COLUMNS, (((1, 7, _START),),))
    source.write(tmp_path / "in", 0, 1)
    stream = source.stream(spark, tmp_path / "in")
    given = spark.createDataFrame([(1, 5)], "user int, total int")
    for frame, problem in (
        (stream, "the initial state is a stream"),
        (given.toPandas(), "the initial state: DataFrame is not a Spark DataFrame"),
        (
            given.withColumnRenamed("user", "name"),
            r"there are no columns \['user'\] to key by, only \['name', 'total'\]",
        ),
        (
            given.withColumn("user", f.col("user").cast("bigint")),
            "the key 'user' of type bigint, .* its type is int[.]",
        ),
        (given.withColumnRenamed("total", "totals"), "a column 'totals', .* Did you mean 'total'"),
    ):
        with pytest.raises(InvalidInputError, match=f"keyed\\(uid='it'\\): .*{problem}"):
            _query(OneByOne(), initial_state=frame)([stream])
    mixed = _query(OneByOne(), initial_state=given)([stream.union(spark.createDataFrame([], stream.schema))])
    writer = mixed.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(AnalysisException, match="Union between streaming and batch"):
        writer.format("noop").start()


class _Base(ckpt.KeyedProcessor):
    """Adds a number of the initial state to each row. A timer that an initial row has set outputs it, too."""

    base = ckpt.ValueState("base", "bigint", default=0)
    due = ckpt.Timers("due", clock="event")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        for row in rows:
            yield key.user, self.base.value() + row.n, row.at

    def process_initial(self, ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> None:  # noqa: ANN401
        assert ctx.watermark_ms == 0
        for row in rows:
            self.base.update(self.base.value() + row.base)
            if row.at >= _START:
                self.due.register(row.at)

    def on_timer(self, _ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        yield key.user, self.base.value(), timer.at


class _BaseAndLate(_Base):
    """The same, which sees to late rows itself."""

    def process_late(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        raise ValueError(f"late: {key} {rows}")


def test_each_operator_of_a_chain_has_its_own_initial_state_and_the_watermark_is_that_of_the_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    def at(second: int) -> datetime:
        return _START + timedelta(seconds=second)

    known = spark.createDataFrame(
        [(user, 100 * user, at(10 * user)) for user in range(8)], "user int, base int, at timestamp"
    )
    old = spark.createDataFrame(
        [(1, 1, datetime(1969, 1, 1, tzinfo=timezone.utc)), (2, 1, at(9_999_999))], known.schema
    )
    # What Spark's check of streaming plans refuses in a stream: it stands beside one.
    totals = known.union(known).groupBy("user").agg(f.sum("base").alias("base"), f.max("at").alias("at"))
    totals = totals.join(f.broadcast(known.select("user")), "user").orderBy("user").distinct().limit(100)
    sources = tuple(
        Source(_COLUMNS, (*(((user, n, at(60 * n)),) for n in range(3)), ((user, 0, at(9999)),))) for user in (1, 2)
    )

    def build(frames: Sequence[DataFrame]) -> DataFrame:
        both = frames[0].union(frames[1]).join(known.select("user"), "user", "left").withWatermark("at", "0 seconds")
        for processor, initial in ((_Base(), known.union(old)), (_BaseAndLate(), totals)):
            stream = ckpt.keyed(both, "user", uid=type(processor).__name__)
            both = stream.process(processor, _COLUMNS, "append", event_time="at", initial_state=initial)
        windows = both.groupBy(f.window("at", "1 hour"), "user").agg(f.sum("n").alias("n"), f.count("n").alias("rows"))
        return windows.select("user", "n", "rows")

    case = Case(build, sources, "append")
    batches: dict[int, Lines] = {}
    progress: list[Any] = []
    for end in (2, 4):
        write_inputs(case, tmp_path, end - 2, end)
        progress += recent_progress(run(OURS.session(spark), case, tmp_path, collect_into(batches)))
    assert progress[-1].eventTime["watermark"] == at(9999).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    assert {operator.customMetrics["ckptLateRows"] for each in progress for operator in each.stateOperators[1:]} == {0}
    assert {operator.numRowsDroppedByWatermark for each in progress for operator in each.stateOperators} == {0}
    assert sum(each.numInputRows for each in progress) == sum(
        len(rows) for source in sources for rows in source.batches
    )
    found = sorted(line for lines in batches.values() for line in lines)
    expected = []
    for user in range(8):
        first, second, is_in_stream = 100 * user + (user in (1, 2)), 200 * user, user in (1, 2)
        total = (first + second) + second + is_in_stream * (3 * (first + second) + 0 + 1 + 2)
        expected.append(f"Row(user={user}, n={total}, rows={2 + 3 * is_in_stream})")
    assert found == expected
