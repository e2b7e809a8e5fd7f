"""The order of the rows of a key within a batch: that of Spark."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators import inputs
from integration.operators.keyed import EVENTS, Totals, keyed, play
from integration.operators.providers import OURS
from integration.operators.replay import Case, run, write_inputs
from integration.operators.sources import Source
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


@pytest.mark.parametrize("vectorised", [False, True])
def test_rows_of_a_key_come_in_the_order_that_is_asked_for(
    vectorised: bool,  # noqa: FBT001
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    class Rows(ckpt.KeyedProcessor):
        def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
            yield key.user, [row.id for row in rows]

    class Columns(ckpt.VectorProcessor):
        def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
            ids = batch.column("id").to_numpy()
            lists = [ids[ctx.key_index == number].tolist() for number in range(len(ctx.keys))]
            return pa.table({"user": ctx.keys.column("user"), "ids": pa.array(lists, pa.list_(pa.int64()))})

    processor = Columns() if vectorised else Rows()
    query = keyed(processor, "user int, ids array<bigint>", order_by=["amount", "at"])
    found = play(spark, query, EVENTS, tmp_path)
    names = [each.split()[0] for each in EVENTS.schema.split(", ")]
    for number, batch in enumerate(EVENTS.batches):
        rows = [dict(zip(names, row, strict=True)) for row in batch]
        rows.sort(key=lambda row: (row["amount"] is not None, row["amount"] or 0, row["at"]))
        for user in {row["user"] for row in rows}:
            expected = f"Row(user={user}, ids={[row['id'] for row in rows if row['user'] == user]})"
            assert expected in found[number]


class Numbered(ckpt.VectorProcessor):
    """Puts out the values of one column, numbered as they came."""

    def __init__(self, name: str) -> None:
        self.name = name

    def process_batch(self, _ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        return pa.table({"place": pa.array(np.arange(len(batch)), pa.int32()), "value": batch[self.name]})


_ODD = [
    "float",
    "double",
    "short_decimal",
    "long_decimal",
    "string",
    "binary",
    "boolean",
    "date",
    "timestamp",
    "struct",
    "nested",
]


@pytest.mark.parametrize("name", [f"c_{each}" for each in _ODD])
def test_rows_are_in_the_order_that_spark_gives_them(name: str, spark: SparkSession, tmp_path: Path) -> None:
    source = inputs.kinds(seed=13)
    kind = dict(spark.createDataFrame([], source.schema).dtypes)[name]
    found: list[str] = []

    def collect(frame: DataFrame, _batch: int) -> None:
        found.extend(_shown(row.value) for row in frame.orderBy("place").collect())

    def query(frames: Sequence[DataFrame]) -> DataFrame:
        one = frames[0].selectExpr("*", "1 one")
        return keyed(Numbered(name), f"place int, value {kind}", "one", order_by=name)([one])

    case = Case(query, (source,), output_mode="update")
    write_inputs(case, tmp_path, 0, 1)
    session = OURS.session(spark, **{SHUFFLE_PARTITIONS: "1"})
    run(session, case, tmp_path, collect)
    ordered = session.read.schema(source.schema).parquet(str(tmp_path / "input0")).orderBy(name)
    assert found == [_shown(row[name]) for row in ordered.collect()]
    assert len(set(found)) > 1


def _shown(value: Any) -> str:  # noqa: ANN401
    """As text, with one zero: they are equal."""
    return re.sub(r"-0\.0\b", "0.0", repr(value))


def test_what_spark_has_no_order_of_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    frame = Source("m map<string, int>, s string collate UNICODE_CI, n int", ()).stream(spark, tmp_path / "in")
    frame = frame.selectExpr("*", "parse_json('1') v", "array(m) deep", "n user", "n id")
    for name in ("m", "s", "v", "deep"):
        with pytest.raises(InvalidInputError, match=f"rows cannot be ordered by column '{name}' of type"):
            ckpt.keyed(frame, "n", uid="it", order_by=name).process(Totals(), "n int, rows bigint, total bigint")
