"""Inputs that are added, taken away and reordered between the runs of a query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

import pyspark_ckpt as ckpt
from integration.operators.providers import OURS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COLUMNS = "user string, n bigint"
NAMED = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}


class Totals(ckpt.KeyedProcessor):
    """A total by user over all inputs."""

    total = ckpt.ValueState("total", "bigint", default=0)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        self.total.update(self.total.value() + sum(row.n for row in rows))
        yield key.user, self.total.value()

    process_a = process_b = process_c = process


class Changing:
    """A query whose inputs change from run to run."""

    def __init__(self, spark: SparkSession, folder: Path, settings: Mapping[str, str]) -> None:
        self.session = OURS.session(spark, **settings)
        self.are_named = bool(settings)
        self.folder = folder

    def put(self, name: str, *rows: tuple[str, int]) -> None:
        """Write a file of rows."""
        self.session.createDataFrame(rows, COLUMNS).coalesce(1).write.mode("append").parquet(str(self.folder / name))

    def frame(self, name: str) -> DataFrame:
        """The stream of an input."""
        reader = self.session.readStream.schema(COLUMNS)
        return (reader.name(name) if self.are_named else reader).parquet(str(self.folder / name))

    def run(self, *names: str, checkpoint: str = "checkpoint") -> dict[str, int]:
        """Run the query over these inputs; the last total of each user."""
        if names == ("keyed",):
            frame = ckpt.keyed(self.frame("a"), by="user", uid="it").process(Totals(), "user string, total bigint")
        else:
            inputs: dict[str, Any] = {name: ckpt.KeyedInput(self.frame(name), by="user") for name in names}
            frame = ckpt.keyed_inputs(uid="it", **inputs).process(Totals(), "user string, total bigint")
        found: dict[str, int] = {}
        writer = frame.writeStream.outputMode("update").option("checkpointLocation", str(self.folder / checkpoint))
        writer = writer.foreachBatch(lambda rows, _: found.update(map(tuple, rows.collect())))
        writer.trigger(availableNow=True).start().awaitTermination()
        return found


def test_inputs_with_named_sources_come_and_go(spark: SparkSession, tmp_path: Path) -> None:
    query = Changing(spark, tmp_path, NAMED)
    query.put("a", ("ada", 1), ("bob", 2))
    assert query.run("keyed") == {"ada": 1, "bob": 2}
    query.put("a", ("ada", 10))
    query.put("b", ("ada", 100))
    assert query.run("b", "a") == {"ada": 111}
    query.put("c", ("bob", 1000))
    assert query.run("c", "a", "b") == {"bob": 1002}
    query.put("a", ("ada", 10_000))
    query.put("b", ("bob", 10_000))
    assert query.run("b", "c") == {"bob": 11_002}, "a is not read any more, its state is there"
    ckpt.savepoint(str(tmp_path / "checkpoint"), str(tmp_path / "saved"))
    ckpt.restore(str(tmp_path / "saved"), str(tmp_path / "moved"), parallelism=2)
    query.put("c", ("ada", 5))
    assert query.run("c", checkpoint="moved") == {"ada": 116}


def test_inputs_come_and_go_after_a_restore_that_names_their_sources(spark: SparkSession, tmp_path: Path) -> None:
    without = Changing(spark, tmp_path, {})
    without.put("b", ("ada", 1), ("bob", 2))
    assert without.run("b") == {"ada": 1, "bob": 2}
    ckpt.savepoint(str(tmp_path / "checkpoint"), str(tmp_path / "saved"))
    ckpt.restore(str(tmp_path / "saved"), str(tmp_path / "named"), source_names=["b"])
    query = Changing(spark, tmp_path, NAMED)
    query.put("a", ("ada", 10))
    query.put("b", ("ada", 100))
    assert query.run("a", "b", checkpoint="named") == {"ada": 111}
    query.put("c", ("bob", 1000))
    query.put("b", ("bob", 10_000))
    assert query.run("c", "a", checkpoint="named") == {"bob": 1002}, "b is not read any more, its state is there"


def test_the_order_of_inputs_without_names_may_change(spark: SparkSession, tmp_path: Path) -> None:
    query = Changing(spark, tmp_path, {})
    query.put("a", ("ada", 1))
    query.put("b", ("bob", 2))
    assert query.run("b", "a") == {"ada": 1, "bob": 2}
    query.put("a", ("ada", 10))
    query.put("b", ("bob", 20))
    assert query.run("a", "b") == {"ada": 11, "bob": 22}
    query.put("a", ("ada", 100))
    assert query.run("b", "a") == {"ada": 111}


def test_spark_refuses_another_number_of_inputs_without_names(spark: SparkSession, tmp_path: Path) -> None:
    query = Changing(spark, tmp_path, {})
    query.put("a", ("ada", 1))
    query.put("b", ("ada", 10))
    query.run("a")
    with pytest.raises(StreamingQueryException, match=r"There are \[1\] sources in the checkpoint"):
        query.run("a", "b")
    query.put("a", ("ada", 100))
    assert query.run("a") == {"ada": 101}
