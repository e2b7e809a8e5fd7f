"""The query that is recorded: ``python -m integration.power.query <settings as JSON>``.

It counts the lines of files, one file a batch. When a batch reaches the sink, a file ``<acknowledged>/<batch>`` says
that all batches before are committed. When the query has ended, ``<acknowledged>/<batches>`` says so of all.
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
    """Where everything is. ``format``: of the checkpoint."""

    lines: str
    checkpoint: str
    acknowledged: str
    format: int = 2

    def command(self) -> list[str]:
        """Return the command that runs the query."""
        return [sys.executable, "-m", "integration.power.query", json.dumps(asdict(self))]


def main() -> None:
    """Run the query on all files that there are."""
    settings = Settings(**json.loads(sys.argv[1]))
    builder = ckpt.configure(
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", str(PARTITIONS))
        .config("spark.sql.streaming.stateStore.checkpointFormatVersion", str(settings.format))
        .config("spark.sql.streaming.minBatchesToRetain", "2")
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "300ms"),
        snapshot_every_versions=2,
        retention_grace_period="0s",
    )
    spark = builder.getOrCreate()
    acknowledged = Path(settings.acknowledged)

    def write(rows: DataFrame, batch: int) -> None:
        (acknowledged / str(batch)).touch()
        rows.count()

    counted = spark.readStream.option("maxFilesPerTrigger", 1).text(settings.lines).groupBy("value").count()
    writer = counted.writeStream.outputMode("update").option("checkpointLocation", settings.checkpoint)
    query = writer.foreachBatch(write).trigger(availableNow=True).start()
    query.awaitTermination()
    (acknowledged / str(len(list(Path(settings.lines).iterdir())))).touch()
    spark.stop()


if __name__ == "__main__":
    main()
