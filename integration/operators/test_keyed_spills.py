"""Everything that a task puts on local disk for lack of memory, in real queries: all comes to the same as in memory."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.keyed import keyed
from integration.operators.providers import OURS
from integration.operators.replay import Case, run, write_inputs
from integration.operators.sources import Rows, Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

    from integration.operators.replay import Query

_MEMORY = "spark.sql.streaming.stateStore.ckpt.workerMemory"
_EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
"""Without them, timers that are due and rows come together."""
_START = datetime(2024, 3, 1, tzinfo=timezone.utc)
_FIVE = timedelta(seconds=5)


def _at(seconds: float) -> datetime:
    return _START + timedelta(seconds=seconds)


def _play(
    spark: SparkSession, query: Query, source: Source, folder: Path, memory: str, partitions: int = 1
) -> list[list[tuple[Any, ...]]]:
    """The sorted rows of every batch, with a restart before the last file."""
    case = Case(query, (source,), output_mode="update")
    session = OURS.session(spark, **{SHUFFLE_PARTITIONS: str(partitions), _MEMORY: memory, _EMPTY_BATCHES: "false"})
    batches: dict[int, list[tuple[Any, ...]]] = {}

    def collect(frame: DataFrame, batch_id: int) -> None:
        batches[batch_id] = sorted(map(tuple, frame.collect()), key=repr)

    last = len(source.batches)
    for begin, end in ((0, last - 1), (last - 1, last)):
        write_inputs(case, folder, begin, end)
        run(session, case, folder, collect)
    return [batches[number] for number in sorted(batches)]


class FiveSeconds(ckpt.KeyedProcessor):
    """A timer five seconds after the first row of a batch."""

    due = ckpt.Timers("due", clock="event")

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> None:  # noqa: ANN401
        self.due.register(rows[0].at + _FIVE)

    def on_timer(self, _ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Any]:  # noqa: ANN401
        yield key.user, timer.at


def test_one_due_timer_fires_beside_rows_that_are_beyond_memory(spark: SparkSession, tmp_path: Path) -> None:
    large = tuple((f"large {n}", _at(21), "x" * 400_000) for n in range(4))
    source = Source("user string, at timestamp, text string", ((("a", _at(0), ""),), (("b", _at(20), ""),), large))
    query = keyed(FiveSeconds(), "user string, at timestamp")
    watched = lambda frames: query([frames[0].withWatermark("at", "0 seconds")])  # noqa: E731
    batches = _play(spark, watched, source, tmp_path, "1m")
    assert [row for batch in batches for row in batch] == [("a", _at(5).replace(tzinfo=None))]


_MANY = 200_000
_SCHEMA = "begin bigint, end bigint, at timestamp, bytes int"
_OUT = "user bigint, what string, at_ms bigint, seen bigint"


class Many(ckpt.KeyedProcessor):
    """Timers, some of which are taken back or set again by rows or by timers while they are due."""

    seen = ckpt.ValueState("seen", "bigint", default=0)
    names = ckpt.ListState("names", "string")
    near = ckpt.Timers("near", clock="event")
    wall = ckpt.Timers("wall", clock="processing")

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        for row in rows:
            self.near.register(row.at + _FIVE, "first")
            self.near.register(row.at + 2 * _FIVE, "second")
            if row.at > _at(15):  # what is due already, unless it is of this batch
                self.near.delete(_at(0) + 2 * _FIVE, "second")
        if key.user % 3 == 0:
            self.wall.register(ctx.processing_time_ms - 1, "past")
        self.seen.update(self.seen.value() + len(rows))
        self.names.add(f"{key.user}")
        yield key.user, "rows", None, self.seen.value()

    def on_timer(self, _ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Any]:  # noqa: ANN401
        self.seen.update(self.seen.value() + 1000)
        if timer.namespace == "first":
            self.near.register(timer.at + timedelta(milliseconds=1), "again")
            self.near.register(timer.at + timedelta(days=1), "tomorrow")
        seen = self.seen.value() + 1_000_000 * sum(1 for _ in self.names.get())
        yield key.user, f"{timer.name} {timer.namespace}", 0 if timer.name == "wall" else timer.at_ms, seen


class ManyColumns(ckpt.VectorProcessor):
    """Timers for many keys at once, of which those that are set while others fire fire as well."""

    seen = ckpt.ReducingState("seen", "bigint", "sum")
    near = ckpt.Timers("near", clock="event")

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        at = batch.column("at").combine_chunks()
        self.near.register_rows(ctx.keys, ctx.key_index, pc.add(at, pa.scalar(_FIVE)), "first")
        self.seen.add_rows(ctx.keys, ctx.key_index, pa.array(np.ones(len(batch), np.int64)))
        users = ctx.keys.column("user")
        return _output(users, ["rows"] * len(users), [None] * len(users), self.seen.get_values(ctx.keys))

    def process_timers(self, ctx: ckpt.VectorContext, timers: pa.Table) -> pa.Table:
        is_first = pc.equal(timers["namespace"], "first").to_numpy()
        at = timers["at"].combine_chunks()
        again = pc.add(at.filter(pa.array(is_first)), pa.scalar(timedelta(milliseconds=1)))
        self.near.register_rows(ctx.keys, ctx.key_index[is_first], again, "again")
        self.seen.add_rows(ctx.keys, ctx.key_index, pa.array(np.full(len(timers), 1000, np.int64)))
        users = ctx.keys.column("user").take(pa.array(ctx.key_index))
        seen = self.seen.get_values(ctx.keys).take(pa.array(ctx.key_index))
        return _output(users, timers["namespace"], pc.divide(at.cast(pa.int64()), 1000), seen)


def _output(users: Any, what: Any, at_ms: Any, seen: Any) -> pa.Table:  # noqa: ANN401
    instants = at_ms if isinstance(at_ms, pa.Array) else pa.array(at_ms, pa.int64())
    return pa.table({"user": users, "what": what, "at_ms": instants, "seen": seen})


def _exploded(query: Query) -> Query:
    """Each row of the source stands for as many users as it says, all at its instant."""

    def explode(frames: Sequence[DataFrame]) -> DataFrame:
        rows = frames[0].selectExpr("explode(sequence(begin, end)) as user", "at", "repeat('x', bytes) as text")
        return query([rows.withWatermark("at", "0 seconds")])

    return explode


@pytest.mark.in_turn
def test_hundreds_of_thousands_of_due_timers_fire_once_each(spark: SparkSession, tmp_path: Path) -> None:
    source = Source(_SCHEMA, (((1, _MANY, _at(0), 0),), ((0, 0, _at(20), 0),), ((0, 0, _at(30), 0),)))
    query = _exploded(keyed(ManyColumns(), _OUT))
    counted = lambda frames: query(frames).selectExpr("what", "user", "at_ms", "seen")  # noqa: E731
    fired: dict[str, int] = {}
    for batch in _play(spark, counted, source, tmp_path, "1m"):
        for what, user, _, _ in batch:
            if user:
                fired[what] = fired.get(what, 0) + 1
    assert fired == {"rows": _MANY, "first": _MANY, "again": _MANY}


_CASES: Mapping[str, tuple[int, Sequence[Rows]]] = {
    "few rows, many due": (
        1,
        (((1, 9_000, _at(0), 0),), ((8_000, 8_010, _at(20), 0),), ((8_500, 9_500, _at(40), 0),)),
    ),
    "many large rows, few due": (
        1,
        (((1, 10, _at(0), 0),), ((5, 60, _at(20), 50_000),), ((1, 100, _at(40), 50_000),)),
    ),
    "both, in several partitions": (
        3,
        (
            ((1, 20_000, _at(0), 0),),
            ((1, 4_000, _at(20), 500), (10_000, 16_000, _at(21), 500)),
            ((0, 0, _at(60), 9),),
        ),
    ),
}
"""How many partitions, and which users have rows when."""


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("case", "processor"),
    [
        *(pytest.param(case, ManyColumns(), id=f"{case}-columns") for case in _CASES),
        pytest.param("few rows, many due", Many(), id="few rows, many due-keyed"),
        pytest.param("many large rows, few due", Many(), id="many large rows, few due-keyed"),
        pytest.param(
            "both, in several partitions", Many(), id="both, in several partitions-keyed", marks=pytest.mark.matrix
        ),
    ],
)
def test_timers_come_to_the_same_beyond_memory(case: str, processor: Any, spark: SparkSession, tmp_path: Path) -> None:  # noqa: ANN401
    partitions, batches = _CASES[case]
    source = Source(_SCHEMA, tuple(batches))
    query = _exploded(keyed(processor, _OUT))
    coalesced = lambda frames: query(frames).coalesce(1)  # noqa: E731
    expected = _play(spark, coalesced, source, tmp_path / "expected", "1g", partitions)
    assert {row[1].split()[-1] for batch in expected for row in batch} >= {"rows", "first", "again"}
    found = _play(spark, coalesced, source, tmp_path / "found", "1m", partitions)
    assert [len(batch) for batch in found] == [len(batch) for batch in expected]
    assert found == expected


class Kept:
    """States of all kinds, with and without a time to live."""

    texts = ckpt.ListState("texts", "string")
    touched = ckpt.ListState("touched", "string", ttl=ckpt.Ttl("1 day", refresh="on_read_and_write", clock="event"))
    entries = ckpt.MapState("entries", "bigint", "string", ttl=ckpt.Ttl("1 day", clock="event"))
    last = ckpt.ValueState("last", "string")
    most = ckpt.ReducingState("most", "string", "max")


def _keep(states: Any, rows: Sequence[tuple[int, str]]) -> None:  # noqa: ANN401
    """Keep rows, of which those before may have been spilled by then."""
    for number, text in rows:
        if number % 50 == 49:
            states.texts.update([f"{each[:20]} again" for each in states.texts.get()])
            states.touched.clear()
            for key in list(states.entries.keys())[::2]:
                states.entries.remove(key)
        states.texts.add(text)
        states.touched.add(text)
        states.entries.put(number % 70, text)
        states.last.update(text)
        states.most.add(text)


def _kept(states: Any) -> tuple[int, int, int, str, str]:  # noqa: ANN401
    """What is left of it: lengths, and what tells most differences."""
    texts, touched = "".join(states.texts.get()), "".join(states.touched.get())
    entries = "".join(f"{key} {value}" for key, value in states.entries.items())
    return len(texts), len(touched), len(entries), states.last.value()[-30:], states.most.get()[:30]


_KEPT = "user bigint, what string, texts bigint, touched bigint, entries bigint, last string, most string"


class KeptOfKeys(Kept, ckpt.KeyedProcessor):
    """Keeps more than memory may take for each key, and reads it when timers fire."""

    due = ckpt.Timers("due", clock="event")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        _keep(self, [(row.number, row.text) for row in sorted(rows, key=itemgetter(1))])
        self.due.register(max(row.at for row in rows) + _FIVE)
        yield key.user, "rows", *_kept(self)

    def on_timer(self, _ctx: ckpt.Context, key: Any, _timer: ckpt.Timer) -> Iterator[Any]:  # noqa: ANN401
        self.texts.add("fired")
        self.touched.add("fired")
        self.entries.put(-1, "fired")
        yield key.user, "fired", *_kept(self)


def keep_of_group(
    key: tuple[Any, ...],
    frames: Iterator[pd.DataFrame],
    state: GroupState,
    kept: Kept,
) -> Iterator[pd.DataFrame]:
    """The same in a call of Spark's."""
    import pandas as pd

    if state.hasTimedOut:
        what = "fired"
        kept.texts.add("fired")
        kept.touched.add("fired")
        kept.entries.put(-1, "fired")
        state.remove()
    else:
        what = "rows"
        frame = pd.concat(frames).sort_values("number")
        _keep(kept, list(zip(frame["number"].tolist(), frame["text"].tolist(), strict=True)))
        if not state.exists:
            state.update((1,))
            state.setTimeoutTimestamp(int(frame["at"].max().timestamp() * 1000) + 5000)
    names = [part.split()[0] for part in _KEPT.split(", ")]
    yield pd.DataFrame([[key[0], what, *_kept(kept)]], columns=names)


def _texts(frames: Sequence[DataFrame]) -> DataFrame:
    rows = frames[0].selectExpr("begin", "end", "at", "bytes").withWatermark("at", "0 seconds")
    rows = rows.selectExpr("explode(sequence(begin, end)) as number", "at", "bytes")
    return rows.selectExpr("number % 3 as user", "number", "at", "rpad(number, bytes, 'x') as text")


def _grouped(frames: Sequence[DataFrame]) -> DataFrame:
    function = ckpt.with_states(keep_of_group, Kept(), uid="it")
    return _texts(frames).groupBy("user").applyInPandasWithState(function, _KEPT, "n int", "update", "EventTimeTimeout")


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "query", [lambda frames: keyed(KeptOfKeys(), _KEPT)([_texts(frames)]), _grouped], ids=["keyed", "with_states"]
)
def test_what_is_written_comes_to_the_same_beyond_memory(query: Query, spark: SparkSession, tmp_path: Path) -> None:
    source = Source(
        _SCHEMA,
        (
            ((0, 200, _at(0), 20_000),),
            ((201, 500, _at(20), 20_000),),
            ((0, 2, _at(40), 10),),
            ((5, 5, _at(60), 10),),
        ),
    )
    expected = _play(spark, query, source, tmp_path / "expected", "1g")
    found = _play(spark, query, source, tmp_path / "found", "1m")
    assert {row[1] for batch in expected for row in batch} == {"rows", "fired"}
    assert found == expected
