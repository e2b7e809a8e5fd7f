"""Rescale a running query in s3a: from a thread, after an attempt that fails, and print what its sink has.

``python -m integration.s3a.rescaled_query ROOT SETTINGS``: ``SETTINGS`` is a JSON object of the session's confs.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def main(root: str, settings: dict[str, str]) -> None:
    """Run a query, and rescale it."""
    builder = ckpt.configure(SparkSession.builder.master("local[2]")).config("spark.sql.shuffle.partitions", "2")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    shown: dict[int, list[list[int]]] = {}
    more, told = threading.Condition(), list[str]()

    def keep(frame: DataFrame, batch: int) -> None:
        rows = sorted([row.user, row.seen] for row in frame.collect())
        with more:
            assert shown.setdefault(batch, rows) == rows, f"batch {batch} runs again with other rows"
            more.notify_all()

    def start(checkpoint: str) -> StreamingQuery:
        rows = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=20, numPartitions=1, startTimestamp=0)
        counted = rows.load().groupBy((f.col("value") % 7).alias("user")).agg(f.count("*").alias("seen"))
        writer = counted.writeStream.outputMode("update").option("checkpointLocation", checkpoint)
        return writer.foreachBatch(keep).trigger(processingTime="0 seconds").start()

    def fail(checkpoint: str) -> StreamingQuery:
        if checkpoint.endswith("-partitions"):
            raise RuntimeError("made-up mistake")
        return start(checkpoint)

    def rescale() -> None:
        query = start(f"{root}/query")
        await_batch(1)
        try:
            ckpt.rescale(query, fail, 3)
        except ckpt.errors.RescaleError as problem:
            told.append(str(problem))
            query = problem.query or query
        await_batch(max(shown) + 1)
        done = ckpt.rescale(query, start, 3)
        told.append(done.checkpoint)
        await_batch(max(shown) + 2)

    def await_batch(batch: int) -> None:
        with more:
            assert more.wait_for(lambda: batch in shown, 120)

    thread = threading.Thread(target=rescale)
    thread.start()
    thread.join()
    for query in spark.streams.active:
        query.stop()
    print(json.dumps([told, [sum(seen for _, seen in shown[batch]) for batch in range(len(shown))]]))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
