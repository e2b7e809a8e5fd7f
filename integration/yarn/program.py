"""A user's program: a keyed operator and an aggregation of Spark count what they read in files, a file a batch.

``program.py <folder> <seconds> <suffix> <file>``. The folder has the input, and gets a folder for each query, whose
names end with the suffix. The program waits so long in each batch. A Python worker that finds the file on its machine
removes it, and takes more and more memory.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

STEP_BYTES = 64 << 20
MOST_BYTES = 4 << 30
"""A worker that has so much was not killed."""


class Count(ckpt.KeyedProcessor):
    """Counts the rows of a user, and adds their amounts."""

    seen = ckpt.ValueState("seen", "struct<rows bigint, total bigint>")

    def __init__(self, wish: str) -> None:
        """``wish``: the file that asks for much memory."""
        self.wish = wish

    def process(self, ctx: ckpt.Context, key: tuple[Any, ...], rows: Sequence[Any]) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002
        """Show what there is so far."""
        if Path(self.wish).is_file():
            Path(self.wish).unlink()
            grow()
        count, total = self.seen.value() or (0, 0)
        count, total = count + len(rows), total + sum(row.amount for row in rows)
        self.seen.update((count, total))
        yield key[0], count, total


def grow() -> None:
    """Take memory step by step, until somebody ends this process."""
    held: list[bytes] = []
    while len(held) * STEP_BYTES < MOST_BYTES:
        held.append(b"x" * STEP_BYTES)
        time.sleep(0.05)
    raise MemoryError(f"A worker has {MOST_BYTES} bytes, and nobody has ended it.")


def main(folder: str, pace_s: float, suffix: str, wish: str) -> None:
    """Read all input with both queries at once."""
    spark = ckpt.configure(SparkSession.builder).getOrCreate()

    def start(name: str, counted: DataFrame) -> StreamingQuery:
        home = f"{folder}/{name}{suffix}"

        def write(rows: DataFrame, batch: int) -> None:
            rows.coalesce(1).write.mode("overwrite").csv(f"{home}/output/{batch}")
            time.sleep(pace_s)

        writer = counted.writeStream.outputMode("update").option("checkpointLocation", f"{home}/checkpoint")
        return writer.foreachBatch(write).trigger(availableNow=True).start()

    files = spark.readStream.schema("user string, amount bigint").option("maxFilesPerTrigger", 1)
    rows = files.csv(f"{folder}/input")
    count = ckpt.keyed(rows, by="user", uid="count")
    keyed = count.process(Count(wish), output="user string, rows bigint, total bigint")
    queries = start("keyed", keyed), start("native", rows.groupBy("user").agg(f.count("*"), f.sum("amount")))
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4])
