"""Spark's hash, computed in Python, against Spark's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from integration.operators import inputs
from pyspark_ckpt.operators.encoding.spark_hash import SparkHash
from pyspark_ckpt.operators.types.columns import python_values
from pyspark_ckpt.state_store.format.spark_hash import hash_int_signed

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_keys_of_every_type_have_sparks_hash(spark: SparkSession, tmp_path: Path) -> None:
    for source in (inputs.kinds(seed=11, rows=60), inputs.events(seed=3, rows=60), inputs.numbers()):
        folder = tmp_path / str(id(source))
        source.write(folder, 0, 1)
        frame = spark.read.schema(source.schema).parquet(str(folder))
        names = frame.columns
        hashes = frame.select(*(f.hash(name).alias(name) for name in names), f.hash(*names).alias("all"))
        rows, expected = frame.toArrow(), hashes.toArrow()
        columns = {name: rows.column(name).combine_chunks() for name in names}
        for name, column in columns.items():
            one = SparkHash([column.type])
            found = [one([value]) for value in python_values(column)]
            assert found == [number % 2**32 for number in expected.column(name).to_pylist()], name
        together = SparkHash([column.type for column in columns.values()])
        keys = zip(*map(python_values, columns.values()), strict=True)
        assert list(map(together, keys)) == [number % 2**32 for number in expected.column("all").to_pylist()]


def test_integers_have_sparks_hash(spark: SparkSession) -> None:
    numbers = [0, 1, -1, 7, 2**31 - 1, -(2**31)]
    frame = spark.createDataFrame([(number,) for number in numbers], "n int")
    assert list(map(hash_int_signed, numbers)) == [row[0] for row in frame.select(f.hash("n")).collect()]
