"""The query that is recorded: ``python -m integration.power.query <settings as JSON>``.

It counts the lines of files, one file a batch. When a batch reaches the sink, a file ``<acknowledged>/<batch>`` says
that all batches before are committed. When the query has ended, ``<acknowledged>/<batches>`` says so of all. If there
is a sink, ``<sink>/<batch>`` gets the counts of the batch.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITIONS = 2


@dataclass(frozen=True)
class Settings:
    """Where everything is. ``format``: of the checkpoint. ``sink``: a folder, or empty."""

    lines: str
    checkpoint: str
    acknowledged: str
    format: int = 2
    sink: str = ""

    def command(self) -> list[str]:
        """Return the command that runs the query."""
        return [sys.executable, "-m", "integration.power.query", json.dumps(asdict(self))]


def run(spark: SparkSession, settings: Settings) -> None:
    """Run the query on all files that there are."""
    acknowledged = Path(settings.acknowledged)
    for name, value in _CONFS.items():
        spark.conf.set(name, value)
    spark.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", str(settings.format))

    def write(rows: DataFrame, batch: int) -> None:
        (acknowledged / str(batch)).touch()
        counts = {row["value"]: row["count"] for row in rows.collect()}
        if settings.sink:
            Path(settings.sink, str(batch)).write_text(json.dumps(counts), encoding="utf-8")

    counted = spark.readStream.option("maxFilesPerTrigger", 1).text(settings.lines).groupBy("value").count()
    writer = counted.writeStream.outputMode("update").option("checkpointLocation", settings.checkpoint)
    query = writer.foreachBatch(write).trigger(availableNow=True).start()
    query.awaitTermination()
    (acknowledged / str(len(list(Path(settings.lines).iterdir())))).touch()


_CONFS = {
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.sql.streaming.minBatchesToRetain": "2",
}


def main() -> None:
    """Run the query in a session of its own."""
    builder = ckpt.configure(
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "300ms"),
        snapshot_every_versions=2,
        retention_grace_period="0s",
    )
    spark = builder.getOrCreate()
    run(spark, Settings(**json.loads(sys.argv[1])))
    spark.stop()


if __name__ == "__main__":
    main()
