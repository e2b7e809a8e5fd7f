"""Writes checkpoints of many operators with Spark's own providers: how those in ``spark-3.5.tar.xz`` were made.

``python -m tests.offline.adopting.write_operators FOLDER``, on Spark 3.5. The queries then go on with other files.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tests.offline.adopting.write import PROVIDERS, configure

SCHEMA = "user string, amount long, ts timestamp"
FILES = 3
"""So many files are read before the query moves, each of them in a batch."""


def write_file(folder: Path, number: int) -> None:
    """Write the rows of one file: those of an hour, of some users again and again.

    Spark reads files in the order of their times.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"user": f"u{(n * 7 + number) % 9}", "amount": n, "ts": f"2026-01-01T{number:02d}:{n:02d}:00"}
        for n in range(25)
    ]
    path = folder / f"{number}.json"
    path.write_text("\n".join(map(json.dumps, rows)))
    now_s = time.time()
    os.utime(path, (now_s, now_s + number))


def _count(key: tuple[Any, ...], frames: Iterator[Any], state: Any) -> Iterator[Any]:  # noqa: ANN401 - GroupState
    import pandas as pd

    (before,) = state.getOption or (0,)
    count = before + sum(len(frame) for frame in frames)
    state.update((count,))
    yield pd.DataFrame({"user": [key[0]], "count": [count]})


def _count_rows(rows: DataFrame) -> DataFrame:
    groups = rows.groupBy("user")
    return groups.applyInPandasWithState(_count, "user string, count long", "count long", "update", "NoTimeout")


def _join(rows: DataFrame) -> DataFrame:
    others = rows.select(f.col("user").alias("other"), f.col("ts").alias("later"), f.col("amount").alias("more"))
    return rows.join(others, f.expr("user = other AND later BETWEEN ts AND ts + INTERVAL 70 MINUTES"), "leftOuter")


QUERIES: dict[str, tuple[str, Callable[[DataFrame], DataFrame]]] = {
    "aggregation": (
        "update",
        lambda rows: rows.groupBy("user").agg(f.count("*"), f.sort_array(f.collect_list("amount"))),
    ),
    "aggregation of all": ("update", lambda rows: rows.groupBy().agg(f.sum("amount"))),
    "deduplication": ("append", lambda rows: rows.dropDuplicates(["user", "amount"])),
    "deduplication within the watermark": ("append", lambda rows: rows.dropDuplicatesWithinWatermark(["user"])),
    "groups": ("update", _count_rows),
    "join": ("append", _join),
    "limit": ("append", lambda rows: rows.limit(90)),
    "session windows": (
        "append",
        lambda rows: rows.groupBy("user", f.session_window("ts", "5 minutes")).agg(f.sum("amount")),
    ),
}
"""The output mode of each, and its operator."""


def start(session: SparkSession, name: str, folder: Path, checkpoint: Path, write: Callable[[Any], Any]) -> None:
    """Run a query on the files in ``folder`` to its end. ``write`` sets the sink."""
    mode, operator = QUERIES[name]
    rows = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))
    writer = write(operator(rows.withWatermark("ts", "10 minutes")).writeStream).outputMode(mode)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def main(folder: Path) -> None:
    """Run all queries on each provider."""
    for provider in PROVIDERS:
        spark = SparkSession.builder.master("local[2]").config(map=configure(provider, set())).getOrCreate()
        for name in QUERIES:
            for number in range(FILES):
                write_file(folder / "in", number)
            start(spark, name, folder / "in", folder / provider / name, lambda writer: writer.format("noop"))
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
