"""The harness of ``pyspark_ckpt.testing`` against Spark: batch by batch, across savepoints, and in names of types."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import ParseException
from pyspark.sql.types import _parse_datatype_string

import pyspark_ckpt as ckpt
from integration.operators.providers import OURS
from integration.operators.replay import Case, collect_into, run, write_inputs
from integration.operators.sources import Source
from pyspark_ckpt import testing
from pyspark_ckpt.operators.types.ddl import read_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
COLUMNS = "user string, n bigint, at timestamp"
TOLD = "told string"


class Tells(ckpt.KeyedProcessor):
    """Outputs all that it sees: rows, late ones, timers, its states, and the batch."""

    total = ckpt.ValueState("total", "bigint", default=0)
    recent = ckpt.MapState("recent", "bigint", "timestamp", ttl=ckpt.Ttl("5 minutes", clock="event"))
    log = ckpt.ListState("log", "bigint")
    soon = ckpt.Timers("soon", clock="event")
    rows = ckpt.MetricCounter("rows")

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        for row in rows:
            self.total.update(self.total.value() + row.n)
            self.recent.put(row.n, row.at)
            self.log.add(row.n)
            self.rows.add()
            self.soon.register(row.at + timedelta(minutes=row.n % 7), f"after {row.n}")
        yield self._tell(ctx, key, "rows", len(rows))

    def process_late(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        yield self._tell(ctx, key, "late", sorted(row.n for row in rows))

    def on_timer(self, ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Any]:  # noqa: ANN401
        yield self._tell(ctx, key, "timer", (timer.namespace, timer.at))

    def _tell(self, ctx: ckpt.Context, key: Any, what: str, more: Any) -> tuple[str]:  # noqa: ANN401
        held = self.total.value(), sorted(self.recent.items()), list(self.log.get())
        return (f"{ctx.batch_id} {ctx.partition} {ctx.watermark_ms} {key.user} {what} {more} {held}",)


class TellsInTime(Tells):
    """The same, without a method for late rows: Spark drops them."""

    process_late = None  # type: ignore[assignment]


def _batches(seed: int, count: int = 5) -> list[list[Any]]:
    draw = Random(seed)
    return [
        [
            (draw.choice("abcde"), draw.randrange(100), START + timedelta(seconds=180 * batch - draw.randrange(400)))
            for _ in range(draw.randrange(1, 9))
        ]
        for batch in range(count)
    ]


@pytest.mark.parametrize(("seed", "processor"), [(1, Tells()), (2, TellsInTime())])
def test_a_harness_tells_what_spark_tells(spark: SparkSession, tmp_path: Path, seed: int, processor: Any) -> None:  # noqa: ANN401
    batches = _batches(seed)

    def query(frames: Sequence[DataFrame]) -> DataFrame:
        marked = frames[0].withWatermark("at", "1 minute")
        return ckpt.keyed(marked, by="user", uid="it", order_by="n").process(processor, TOLD)

    case = Case(query, (Source(COLUMNS, tuple(map(tuple, batches))),), output_mode="update")
    told: dict[int, Any] = {}
    for number in range(len(batches)):
        write_inputs(case, tmp_path / "spark", number, number + 1)
        run(OURS.session(spark), case, tmp_path / "spark", lambda frame, batch: told.update({batch: frame.collect()}))
    stream = testing.keyed(COLUMNS, by="user", uid="it", order_by="n", watermark=("at", "1 minute"), parallelism=2)
    harnessed: list[Any] = []
    with stream.process(processor, TOLD) as harness:
        for rows in batches:
            harnessed.append(harness.run(rows))
            if harness.watermark != datetime.fromtimestamp(harness._late_ms / 1000, timezone.utc):
                harnessed.append(harness.run())
        states = harness.states()
    found = {number: Counter(row.told for row in rows) for number, rows in enumerate(harnessed)}
    assert found == {number: Counter(row.told for row in rows) for number, rows in told.items()}
    checkpoint = str(tmp_path / "spark" / "checkpoint")
    with ckpt.reading.open_state(checkpoint, uid="it", state="log") as reader:
        assert states["log"] == {key: reader.get(key) for key in states["log"]}
        assert len(states["log"]) == len(set(map(str, reader.to_arrow()["key"].to_pylist())))


@pytest.mark.parametrize("version", [1, 2])
def test_savepoints_go_from_a_query_to_a_harness_and_back(spark: SparkSession, tmp_path: Path, version: int) -> None:
    batches = _batches(3, 4)

    def query(frames: Sequence[DataFrame]) -> DataFrame:
        return ckpt.keyed(frames[0], by="user", uid="it").process(Sums(), "user string, total bigint")

    case = Case(query, (Source(COLUMNS, tuple(map(tuple, batches))),), output_mode="update")
    expected: dict[tuple[str], int] = {}
    for user, number, _ in [row for rows in batches[:2] for row in rows]:
        expected[user,] = expected.get((user,), 0) + number
    write_inputs(case, tmp_path / "query", 0, 2)
    session = OURS.in_format(version).session(spark)
    run(session, case, tmp_path / "query", collect_into({}))
    ckpt.savepoint(str(tmp_path / "query" / "checkpoint"), str(tmp_path / "first"))
    stream = testing.keyed(COLUMNS, by="user", uid="it", parallelism=3, savepoint=tmp_path / "first")
    with stream.process(Sums(), "user string, total bigint") as harness:
        assert harness.state("total") == expected
        harness.run(batches[2])
        harness.savepoint(tmp_path / "second")
        for user, number, _ in batches[2]:
            expected[user,] = expected.get((user,), 0) + number
        assert harness.state("total") == expected
    ckpt.restore(str(tmp_path / "second"), str(tmp_path / "new" / "checkpoint"), parallelism=2)
    with ckpt.reading.open_state(str(tmp_path / "new" / "checkpoint"), uid="it", state="total") as reader:
        assert {key: reader.get(key) for key in expected} == expected


class Sums(ckpt.KeyedProcessor):
    """The sum by user."""

    total = ckpt.ValueState("total", "bigint", default=0)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        self.total.update(self.total.value() + sum(row.n for row in rows))
        yield key.user, self.total.value()


_TYPES = [
    *("boolean", "BYTE", "tinyint", "short", "smallint", "int", "integer", "long", "bigint", "float", "real", "double"),
    *("decimal", "decimal(5)", "dec(7, 3)", "numeric( 38,18 )", "date", "timestamp", "timestamp_ntz", "timestamp_ltz"),
    *("string", "string collate UNICODE_CI", "char(5)", "character(3)", "varchar(12)", "binary", "void", "variant"),
    *("time", "time(3)", "interval year", "interval month", "interval year to month", "interval day to second"),
    *("interval hour to minute", "array<int>", "map<string, array<long>>", "struct<>", "struct<a int, b: string>"),
    *("struct<a int not null comment 'it''s', `b c`: map<int,struct<x:int>>>", "a int", "a: int, b string", "int int"),
    *("a int NOT NULL, b array<struct<c:int,d:string>> COMMENT 'what \\'it\\' is'", "`a``b` int", "date date, 1a int"),
    *("int,", "array<int", "map<int>", "struct<a>", "nothing", "", "decimal(5,6,7)", "decimal(5,7)", "char", "a"),
    *(
        "interval second to day",
        "interval year to year",
        "interval day to day",
        "1 int",
        "struct<1:int>",
        "string collate utf8_binary",
        "interval day to month",
        "a int b int",
        "array<int>>",
        "a int, , b int",
        "a-b int",
    ),
    *("map<int,int,int>", "varchar", "decimal(99)", "time(9)", "a int comment", "`a int"),
]


@pytest.mark.parametrize("text", _TYPES)
def test_types_are_read_as_spark_reads_them(spark: SparkSession, text: str) -> None:  # noqa: ARG001 - a session is there
    try:
        expected = _parse_datatype_string(text)
    except ParseException:
        with pytest.raises(ValueError, match=r"."):
            read_type(text)
    else:
        assert read_type(text).json() == expected.json()
