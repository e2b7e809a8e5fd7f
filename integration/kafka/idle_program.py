"""A driver whose queries have each partition of a Kafka topic as an input: see ``integration.crash.program``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from integration.crash.program import serve
from integration.operators.idle_queries import START, in_outer_join, in_timers, in_union
from integration.progress import read_instant

Query: TypeAlias = Callable[..., DataFrame]

QUERIES: dict[str, Query] = {"join": in_outer_join, "windows": in_union, "timers": in_timers}


def run(spark: SparkSession, *, name: str, checkpoint: str, servers: str, topic: str, after: str) -> dict[str, Any]:
    """Run a query until it has read all records: what has come out, and the last watermark in minutes.

    A record has a key, and the minute of its event time as its value.
    """
    source = spark.readStream.format("kafka").options(
        **{"kafka.bootstrap.servers": servers, "startingOffsets": "earliest"}
    )
    at = f.timestamp_seconds(f.col("value").cast("string").cast("bigint") * 60 + int(START.timestamp()))
    columns = f.col("key").cast("string").alias("k"), at.alias("at")
    inputs = [source.option("assign", json.dumps({topic: [n]})).load().select(*columns) for n in range(2)]
    out: list[list[Any]] = []
    writer = QUERIES[name](*inputs, after).writeStream.outputMode("append").option("checkpointLocation", checkpoint)
    writer = writer.foreachBatch(lambda frame, _: out.extend(map(list, frame.collect())))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    watermarks = [each for progress in query.recentProgress if (each := progress.eventTime.get("watermark"))]
    watermark = (read_instant(watermarks[-1]) - START) // timedelta(minutes=1)
    return {"out": sorted(out), "watermark": watermark}


if __name__ == "__main__":
    sys.exit(serve({"run": run}))
