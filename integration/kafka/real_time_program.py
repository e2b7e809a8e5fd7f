"""A driver whose query counts the records of users from topic to topic, also in real-time mode."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import pyspark_ckpt as ckpt
from integration.crash.program import Orders, serve
from integration.progress import recent_progress, stop_after_batches

_QUERIES: list[StreamingQuery] = []


class Count(ckpt.KeyedProcessor):
    """Tells the number of each record of a user."""

    records = ckpt.ValueState("records", "bigint", default=0)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        if key.user == "0":
            raise ValueError("a record of nobody")
        for _ in rows:
            self.records.update(self.records.value() + 1)
            yield key.user, self.records.value()


def _query(spark: SparkSession, servers: str, source: str, sink: str, checkpoint: str) -> DataStreamWriter:
    kafka = {"kafka.bootstrap.servers": servers}
    reader = spark.readStream.format("kafka").options(**kafka, subscribe=source, startingOffsets="earliest")
    users = reader.load().select(f.col("key").cast("string").alias("user"))
    counted = ckpt.keyed(users, by="user", uid="count").process(Count(), "user string, records bigint", "update")
    out = counted.select(f.col("user").alias("key"), f.col("records").cast("string").alias("value"))
    writer = out.writeStream.format("kafka").options(**kafka, topic=sink, checkpointLocation=checkpoint)
    return writer.outputMode("update")


def run(spark: SparkSession, **where: str) -> None:
    """Process all records that there are, in micro-batches."""
    _query(spark, **where).trigger(availableNow=True).start().awaitTermination()


def start(spark: SparkSession, batch_s: int = 5, **where: str) -> None:
    """Start the query in real-time mode, with batches of so many seconds."""
    writer = _query(spark, **where).trigger(realTime=f"{batch_s} seconds")  # type: ignore[call-overload]
    _QUERIES.append(writer.start())


def start_batches(spark: SparkSession, **where: str) -> None:
    """Start the query in micro-batches."""
    _QUERIES.append(_query(spark, **where).trigger(processingTime="500 milliseconds").start())


def describe(_spark: SparkSession) -> str:
    """Return the error with which the query has ended, or nothing."""
    return str(_QUERIES[-1].exception() or "")


def stop_at_once(_spark: SparkSession) -> float:
    """Stop the query within its batch. Return how many seconds that took."""
    begin = time.monotonic()
    _QUERIES.pop().stop()
    return time.monotonic() - begin


def end(_spark: SparkSession) -> str:
    """Wait for the query to fail, and return its error."""
    with contextlib.suppress(StreamingQueryException):
        _QUERIES[-1].awaitTermination(60)
    return str(_QUERIES.pop().exception() or "")


def spills(_spark: SparkSession) -> int:
    """Return how often finished batches have spilled."""
    return sum(each.stateOperators[0].customMetrics["ckptSpilledRuns"] for each in recent_progress(_QUERIES[-1]))


def stop(_spark: SparkSession) -> str:
    """Stop it after the batch that runs now. Return its error, or nothing."""
    query = _QUERIES.pop()
    stop_after_batches(query, 2)
    return str(query.exception() or "")


ORDERS: Orders = {
    "run": run,
    "start": start,
    "start_batches": start_batches,
    "describe": describe,
    "stop": stop,
    "stop_at_once": stop_at_once,
    "end": end,
    "spills": spills,
}

if __name__ == "__main__":
    sys.exit(serve(ORDERS, real_time=True))
