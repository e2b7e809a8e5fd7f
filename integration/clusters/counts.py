"""A user's program: counts words that come in files, in two queries at once; run by the tests as a script.

``counts.py <folder> <master or -> <how often>``: all input is read, the queries stop, and so on. It prints one
line of JSON: the counts of each query, the names of the state metrics, and the session's jars.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import pyspark_ckpt

QUERIES = ("value", "upper(value)")


def main(folder: Path, master: str, runs: int) -> None:
    """Read all input ``runs`` times, adding a file before each."""
    builder = SparkSession.builder.appName("counts")
    for key, value in json.loads((folder / "settings.json").read_text(encoding="utf-8")).items():
        builder = builder.config(key, value)
    if master != "-":
        builder = builder.master(master)
    spark = pyspark_ckpt.configure(builder).getOrCreate()
    counts: list[dict[str, int]] = [{} for _ in QUERIES]
    metrics: set[str] = set()
    for _ in range(runs):
        _add_input(folder / "input")
        started = [_start(spark, folder, number, counts[number]) for number in range(len(QUERIES))]
        for query in started:
            query.awaitTermination()
            last = query.lastProgress
            assert last is not None
            metrics |= {name for operator in last["stateOperators"] for name in operator["customMetrics"]}
    jars = [path.rpartition("/")[2] for path in str(spark.conf.get("spark.jars")).split(",")]
    print(json.dumps({"counts": counts, "metrics": sorted(metrics), "jars": sorted(jars)}))
    spark.stop()


def _add_input(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    number = len(list(folder.iterdir()))
    (folder / f"{number}.txt").write_text("a\nb\nb\n", encoding="utf-8")


def _start(spark: SparkSession, folder: Path, number: int, counts: dict[str, int]) -> StreamingQuery:
    words = spark.readStream.option("maxFilesPerTrigger", "1").text(str(folder / "input"))

    def keep(changed: DataFrame, _: int) -> None:
        rows: list[Any] = changed.collect()
        counts.update({row["word"]: row["count"] for row in rows})

    return (
        words.selectExpr(f"{QUERIES[number]} as word")
        .groupBy("word")
        .count()
        .writeStream.outputMode("update")
        .foreachBatch(keep)
        .option("checkpointLocation", str(folder / f"checkpoint{number}"))
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
