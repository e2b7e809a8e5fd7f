"""Writes a checkpoint with one of Spark's own providers: how the ones in ``spark-4.3.tar.xz`` were made.

``python -m tests.offline.adopting.write FOLDER rocksdb|hdfs [changelog] [format 2]``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

_STORE = "spark.sql.streaming.stateStore."
_PACKAGE = "org.apache.spark.sql.execution.streaming.state."
PROVIDERS = {"rocksdb": "RocksDBStateStoreProvider", "hdfs": "HDFSBackedStateStoreProvider"}
BATCHES = 6


def configure(provider: str, options: set[str]) -> dict[str, bool | float | int | str | None]:
    """Return the conf of a session with a provider."""
    return {
        "spark.sql.shuffle.partitions": "3",
        f"{_STORE}providerClass": _PACKAGE + PROVIDERS[provider],
        f"{_STORE}rocksdb.changelogCheckpointing.enabled": str("changelog" in options).lower(),
        f"{_STORE}checkpointFormatVersion": "2" if "format 2" in options else "1",
        f"{_STORE}minDeltasForSnapshot": "4",
        f"{_STORE}maintenanceInterval": "2s",
    }


def main(folder: Path, provider: str, options: set[str]) -> None:
    """Count rows by user and hour, in six runs of two batches each."""
    spark = SparkSession.builder.master("local[2]").config(map=configure(provider, options)).getOrCreate()
    (folder / "in").mkdir(parents=True)
    rows = spark.readStream.schema("user string, amount long, ts timestamp").json(str(folder / "in"))
    hours = rows.withWatermark("ts", "1 hour").groupBy("user", f.window("ts", "1 hour"))
    for batch in range(BATCHES):
        given = [{"user": f"u{n % 11}", "amount": n, "ts": f"2026-01-01T{batch:02d}:{n:02d}:00"} for n in range(40)]
        (folder / "in" / f"{batch}.json").write_text("\n".join(map(json.dumps, given)))
        writer = hours.agg(f.count("*"), f.sum("amount")).writeStream.format("noop").outputMode("update")
        writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()
        time.sleep(2)  # for the maintenance
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], set(sys.argv[3:]))
