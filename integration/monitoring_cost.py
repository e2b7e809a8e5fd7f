"""What the export of metrics costs: ``python -m integration.monitoring_cost``.

It runs a query with ten stateful operators, and then one with a keyed operator, each for some batches. It prints the
exporter's own time, which is that of the driver's Python program, beside the time of the batches.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from integration.conftest import new_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

_BATCHES = 30
_OPERATORS = 10


class Count(ckpt.KeyedProcessor):
    """Counts rows."""

    total = ckpt.ValueState("total", "bigint", default=0)
    seen = ckpt.MetricCounter("seen")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Any) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401
        self.seen.add(len(rows))
        self.total.update(self.total.value() + len(rows))
        yield key.user, self.total.value()


def _rows(spark: SparkSession) -> DataFrame:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load()
    return source.withColumn("user", (f.col("value") % 100).cast("int"))


def _make_chain(spark: SparkSession) -> DataFrame:
    frame = _rows(spark).withWatermark("timestamp", "1 hour")
    for number in range(_OPERATORS):
        frame = frame.withColumn("value", f.col("value") + number).dropDuplicates(["user", "value", "timestamp"])
    return frame


def _make_keyed(spark: SparkSession) -> DataFrame:
    keyed = ckpt.keyed(_rows(spark), by="user", uid="count")
    return keyed.process(Count(), output="user int, total bigint", mode="append")


def main() -> None:
    """Measure, and print a table."""
    spark = new_session()
    print("| query | ms a batch | exporter, ms a batch | part |\n|---|---|---|---|")
    for name, make in ((f"{_OPERATORS} deduplications", _make_chain), ("a keyed operator", _make_keyed)):
        registry = CollectorRegistry()
        with (
            ckpt.monitoring.export_metrics(spark, prometheus=registry),
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        ):
            writer = make(spark).writeStream.format("noop").option("checkpointLocation", str(Path(folder) / "c"))
            query = writer.start()
            labels = {"query": str(query.id), "query_id": str(query.id)}
            while (registry.get_sample_value("ckpt_batches_total", labels) or 0) < _BATCHES:
                query.awaitTermination(1)
            query.stop()
            batches = registry.get_sample_value("ckpt_batches_total", labels) or 1
            batch_s = (registry.get_sample_value("ckpt_batch_duration_seconds_total", labels) or 0) / batches
            own_s = (registry.get_sample_value("ckpt_exporter_duration_seconds_total") or 0) / batches
        print(f"| {name} | {batch_s * 1000:.0f} | {own_s * 1000:.2f} | {own_s / batch_s:.2%} |")
    spark.stop()


if __name__ == "__main__":
    main()
