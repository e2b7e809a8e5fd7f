"""A driver whose queries count the records of users in a Kafka topic: see ``integration.crash.program``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

import pyspark_ckpt as ckpt
from integration.crash.program import serve
from integration.kafka.sinks import write_in_transaction, write_over

HOLD = "hold"
HELD = "held-{}"
MAX_RECORDS = 40
"""Of one batch."""
_HOLD_LIMIT_S = 300.0
_COLUMNS = "user string, records bigint, total bigint, offsets bigint"
_QUERIES: dict[str, StreamingQuery] = {}


class Counts(ckpt.KeyedProcessor):
    """How many records a user has had, and the sums of their amounts and of their offsets."""

    records = ckpt.ValueState("records", "bigint", default=0)
    total = ckpt.ValueState("total", "bigint", default=0)
    offsets = ckpt.ReducingState("offsets", "bigint", "sum")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.records.update(self.records.value() + len(rows))
        self.total.update(self.total.value() + sum(row.amount for row in rows))
        self.offsets.add(sum(row.offset for row in rows))
        yield key.user, self.records.value(), self.total.value(), self.offsets.get()


def counted(name: str, records: DataFrame) -> DataFrame:
    """The same counts by a keyed operator, or by Spark's own aggregation."""
    if name == "keyed":
        return ckpt.keyed(records, "user", uid="counts").process(Counts(), _COLUMNS)
    sums = f.count("*").alias("records"), f.sum("amount").alias("total"), f.sum("offset").alias("offsets")
    return records.groupBy("user").agg(*sums)


def start(
    spark: SparkSession, *, name: str, checkpoint: str, folder: str, partitions: int, servers: str, topic: str
) -> None:
    """Start a query on ``checkpoint``; its sinks are in ``folder``.

    While there is a file ``hold`` in it, a batch does not end that has been written to the sinks.
    """
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", partitions)
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
    source = session.readStream.format("kafka").options(**options, maxOffsetsPerTrigger=MAX_RECORDS).load()
    records = source.selectExpr("CAST(key AS STRING) AS user", "CAST(CAST(value AS STRING) AS BIGINT) amount", "offset")
    sinks = Path(folder)

    def write(frame: DataFrame, batch: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query is not None
        rows = sorted(map(tuple, frame.collect()))
        write_over(sinks / "batches", query, batch, rows)
        write_in_transaction(sinks / "sink.db", query, batch, rows)
        until = time.monotonic() + _HOLD_LIMIT_S
        while (sinks / HOLD).exists():
            (sinks / HELD.format(batch)).touch()
            if time.monotonic() > until:
                raise TimeoutError(f"batch {batch} was held too long")
            time.sleep(0.02)

    writer = counted(name, records).writeStream.outputMode("update").option("checkpointLocation", checkpoint)
    _QUERIES[name] = writer.foreachBatch(write).start()


def catch_up(_spark: SparkSession, *, names: Sequence[str]) -> None:
    """Wait until queries have read all that there is."""
    for name in names:
        _QUERIES[name].processAllAvailable()


def stop(_spark: SparkSession, *, name: str, target: str, kind: Literal["native", "canonical"]) -> int:
    """Stop a query with a savepoint; its version."""
    return ckpt.stop_with_savepoint(_QUERIES.pop(name), target, kind=kind).version


def restore(_spark: SparkSession, *, saved: str, target: str, partitions: int) -> int:
    """Make a checkpoint of a savepoint; its version."""
    return ckpt.restore(saved, target, parallelism=partitions, query_id="keep").version


def rescale(_spark: SparkSession, *, checkpoint: str, target: str, partitions: int) -> int:
    """Make a checkpoint of another one; its version."""
    return ckpt.restore(checkpoint, target, parallelism=partitions).version


if __name__ == "__main__":
    sys.exit(serve({each.__name__: each for each in (start, catch_up, stop, restore, rescale)}))
