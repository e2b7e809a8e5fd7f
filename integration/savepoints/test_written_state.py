"""Queries that have never run begin with state that was written for them; others go on with state that was mended."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupStateTimeout

import pyspark_ckpt as ckpt
from integration.conftest import PARTITIONS
from pyspark_ckpt import writing
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.savepoints import restore, savepoint
from pyspark_ckpt.writing import write_state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

DAY = dt.timedelta(days=1)
LONG_AGO = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


class Visits(ckpt.KeyedProcessor):
    """Counts, and shows all that it has of a key."""

    views = ckpt.ValueState("views", "long", default=0)
    seen = ckpt.ListState("seen", "string")
    shares = ckpt.MapState("shares", "int", "double")
    lately = ckpt.ValueState("lately", "long", ttl=ckpt.Ttl(DAY))
    alarms = ckpt.Timers("alarms", clock="processing")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        self.views.update(self.views.value() + len(rows))
        yield (
            key.user,
            self.views.value(),
            repr((list(self.seen.get()), dict(self.shares.items()), self.lately.value())),
        )

    def on_timer(self, _ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Any]:  # noqa: ANN401
        yield key.user, -1, f"{timer.at}"


class Names(ckpt.KeyedProcessor):
    """The second of two operators."""

    known = ckpt.ValueState("known", "long")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        yield key.user, self.known.value() or 0, rows[-1].what


OUTPUT = "user string, views long, what string"


def _visits(spark: SparkSession) -> DataFrame:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    users = rows.selectExpr("concat('u', value) AS user")
    return ckpt.keyed(users, by="user", uid="visits").process(Visits(), output=OUTPUT)


def _named(spark: SparkSession) -> DataFrame:
    return ckpt.keyed(_visits(spark), by="user", uid="names").process(Names(), output=OUTPUT)


def _run(frame: DataFrame, checkpoint: Path, batches: int) -> dict[int, list[Any]]:
    """Run a query for some batches; return its output by batch."""
    shown: dict[int, list[Any]] = {}

    def write(rows: DataFrame, batch: int) -> None:
        shown[batch] = sorted(tuple(row) for row in rows.collect())
        if len(shown) == batches:
            raise RuntimeError("enough")

    query = (
        frame.writeStream.outputMode("update")
        .foreachBatch(write)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        query.awaitTermination(300)
    except Exception as problem:
        if "enough" not in str(problem):
            raise
    return shown


def _make_changes(spark: SparkSession) -> list[writing.Change]:
    counts = spark.createDataFrame([(f"u{n}", n) for n in range(50)], "user string, value long")
    seen = pa.table({"user": ["u1", "u1", "u2"], "index": [1, 0, 0], "value": ["b", "a", "c"]})
    shares = pa.table({"user": ["u1", "u1", "u2"], "map_key": [1, 0, 0], "value": [1.5, 2.5, 3.0]})
    old = [LONG_AGO if n % 2 else dt.datetime.now(dt.timezone.utc) for n in range(50)]
    lately = pa.table(
        {
            "user": [f"u{n}" for n in range(50)],
            "value": list(range(50)),
            "written_at": pa.array(old, pa.timestamp("us", "UTC")),
        }
    )
    alarms = pa.table({"user": ["u1", "u9"], "at": pa.array([LONG_AGO, LONG_AGO + DAY], pa.timestamp("us", "UTC"))})
    return [
        writing.Put("visits", Visits.views, counts, key="user string"),
        writing.Put("visits", Visits.seen, seen),
        writing.Put("visits", Visits.shares, shares),
        writing.Put("visits", Visits.lately, lately),
        writing.Put("visits", Visits.alarms, alarms),
    ]


def test_a_query_begins_with_the_state_that_was_written_for_it(spark: SparkSession, tmp_path: Path) -> None:
    write_state(None, tmp_path / "saved", _make_changes(spark), parallelism=7)
    restore(tmp_path / "saved", tmp_path / "query", parallelism=PARTITIONS)
    shown = _run(_visits(spark), tmp_path / "query", 2)
    assert shown == {
        1: [
            ("u0", 1, "([], {}, 0)"),
            ("u1", -1, f"{LONG_AGO}"),
            ("u1", 2, "(['a', 'b'], {0: 2.5, 1: 1.5}, None)"),
            ("u2", 3, "(['c'], {0: 3.0}, 2)"),
            ("u3", 4, "([], {}, None)"),
            ("u4", 5, "([], {}, 4)"),
            ("u9", -1, f"{LONG_AGO + DAY}"),
        ],
        2: [
            ("u5", 6, "([], {}, None)"),
            ("u6", 7, "([], {}, 6)"),
            ("u7", 8, "([], {}, None)"),
            ("u8", 9, "([], {}, 8)"),
            ("u9", 10, "([], {}, None)"),
        ],
    }


def test_operators_are_numbered_from_the_sink_to_the_sources(spark: SparkSession, tmp_path: Path) -> None:
    known = pa.table({"user": ["u1", "u3"], "value": [10, 30]})
    put = writing.Put("names", Names.known, known, key="user string")
    write_state(None, tmp_path / "saved", [put, *_make_changes(spark)[:1]], parallelism=PARTITIONS)
    restore(tmp_path / "saved", tmp_path / "query")
    assert _run(_named(spark), tmp_path / "query", 1) == {
        1: [(f"u{n}", {1: 10, 3: 30}.get(n, 0), "([], {}, None)") for n in range(5)]
    }
    with open_state(tmp_path / "query", uid="visits", state="views", version=1) as views:
        assert views.get("u49") == 49


def test_a_query_goes_on_with_a_value_that_was_mended(spark: SparkSession, tmp_path: Path) -> None:
    def mend(rows: pa.Table) -> pa.Table:
        is_wrong = pc.equal(pc.struct_field(rows["key"], "user"), "u3")
        return rows.set_column(1, "value", pc.if_else(is_wrong, 1000, rows["value"]))

    _run(_visits(spark), tmp_path / "query", 3)
    savepoint(tmp_path / "query", tmp_path / "saved")
    write_state(tmp_path / "saved", tmp_path / "mended", [writing.Transform("visits", "views", mend)])
    restore(tmp_path / "mended", tmp_path / "again")
    with open_state(tmp_path / "again", uid="visits", state="views") as views:
        assert views.get("u3") == 1000
        assert views.get("u4") == 1
    shown = _run(_visits(spark), tmp_path / "again", 1)
    assert shown == {2: [(f"u{n}", 1, "([], {}, None)") for n in range(10, 15)]}


def test_a_query_begins_with_the_savepoint_of_a_harness(spark: SparkSession, tmp_path: Path) -> None:
    stream = ckpt.testing.keyed("user string", by="user", uid="visits", parallelism=3)
    with stream.process(Visits(), output=OUTPUT) as harness:
        harness.run([("u1",), ("u1",), ("u2",)])
        harness.run([("u1",)])
        harness.savepoint(tmp_path / "saved")
    restore(tmp_path / "saved", tmp_path / "query", parallelism=PARTITIONS)
    shown = _run(_visits(spark), tmp_path / "query", 1)
    assert [row[:2] for row in shown[2]] == [("u0", 1), ("u1", 4), ("u2", 2), ("u3", 1), ("u4", 1)]


def test_an_aggregation_of_spark_goes_on_with_counts_that_were_mended(spark: SparkSession, tmp_path: Path) -> None:
    def mend(rows: pa.Table) -> pa.Table:
        values = rows["value"].combine_chunks()
        count = pc.add(values.field(0), 1000)
        mended = pa.StructArray.from_arrays([count], fields=list(values.type))
        return rows.set_column(rows.column_names.index("value"), "value", mended)

    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 6).load()
    counts = rows.selectExpr("concat('key ', value % 3) AS k").groupBy("k").count()
    _run(counts, tmp_path / "query", 2)
    savepoint(tmp_path / "query", tmp_path / "saved")
    write_state(tmp_path / "saved", tmp_path / "mended", [writing.Transform(0, "default", mend)])
    restore(tmp_path / "mended", tmp_path / "again", parallelism=PARTITIONS)
    ((_, first),) = _run(counts, tmp_path / "again", 1).items()
    known = [count for _, count in first]
    assert known == [1000 + known[0] % 1000] * 3
    assert known[0] > 1002


TYPES = {
    "tiny": "CAST(n AS tinyint)",
    "text": "repeat('x', n)",
    "bytes": "CAST(repeat('y', n) AS binary)",
    "at": "timestamp_micros(-n)",
    "short": "CAST(-n AS decimal(9, 2))",
    "large": "CAST(concat(repeat('9', n * 4), '.25') AS decimal(38, 2))",
    "numbers": "transform(sequence(0, n), x -> CAST(-x AS smallint))",
    "decimals": "transform(sequence(0, n), x -> IF(x = 1, NULL, CAST(x AS decimal(38, 1))))",
    "texts": "transform(sequence(0, n), x -> IF(x = 2, NULL, repeat('z', x)))",
    "pair": "named_struct('a', CAST(n AS float), 'b', CAST(n % 2 = 0 AS boolean), 'c', CAST(NULL AS decimal(30, 0)))",
    "map": "map(n, array(named_struct('d', CAST(n AS double))), n + 1, NULL)",
    "day": "date_add(DATE'2020-01-01', n)",
}
"""Columns by what makes them of a small number n."""


def test_values_of_all_types_have_the_bytes_that_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 12).load()
    numbers = rows.selectExpr("CAST(value % 6 AS int) AS n")
    columns = numbers.selectExpr(
        "n", *(f"IF(n = 5, NULL, {made}) AS {name}" for name, made in TYPES.items()), f"{TYPES['pair']} AS k"
    )
    firsts = [f.first(name).alias(name) for name in TYPES]
    _run(columns.groupBy("n", "k", "large", "decimals").agg(f.count("*"), *firsts), tmp_path / "query", 2)
    before = savepoint(tmp_path / "query", tmp_path / "saved", kind="canonical")
    with open_state(tmp_path / "saved", operator=0) as state:
        table = state.to_arrow()
    after = write_state(tmp_path / "saved", tmp_path / "again", [writing.Put(0, "default", table)])
    assert len(table) == 6
    assert after.digests_of(0, "default") == before.digests_of(0, "default")


def _count(_key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:  # noqa: ANN401
    """Count the rows of a group."""
    (before,) = state.get if state.exists else (0,)
    state.update((int(before) + sum(map(len, frames)),))
    yield pd.DataFrame({"n": [int(state.get[0])]})


def test_keys_that_spark_stores_as_they_come_stay_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 9).load()
    zeros = rows.selectExpr("element_at(array(-0.0D, double('NaN'), 1D), CAST(value % 3 + 1 AS int)) AS d")
    columns = "n long", "n long"
    counts = zeros.groupBy("d").applyInPandasWithState(_count, *columns, "update", GroupStateTimeout.NoTimeout)
    _run(counts, tmp_path / "query", 2)
    before = savepoint(tmp_path / "query", tmp_path / "saved", kind="canonical")
    with open_state(tmp_path / "saved", operator=0) as state:
        table = state.to_arrow()
    assert "-0.0" in repr(table["key"].to_pylist())
    after = write_state(tmp_path / "saved", tmp_path / "again", [writing.Put(0, "default", table)])
    assert after.digests_of(0, "default") == before.digests_of(0, "default")
    restore(tmp_path / "again", tmp_path / "on")
    shown = _run(counts, tmp_path / "on", 2)
    assert sorted(n for each in shown.values() for (n,) in each)[-3:] == [9, 9, 9]
