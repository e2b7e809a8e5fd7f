"""A query whose keys of S3 change in Hadoop's credential file.

``python -m integration.renewed_secrets FOLDER ENDPOINT``: the checkpoint is local, and state is in S3. Prints the
counts of each batch.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from integration.clouds.rescaled import keep_secrets
from tests.services.rotating_s3 import Gateway

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCHES = 3


def main(folder: Path, endpoint: str) -> None:
    """Run the batches in one run of the query. Before each one the key changes."""
    keys = folder / "keys.jceks"
    gateway = Gateway(endpoint, folder / "credentials", itertools.count(1000))
    builder = ckpt.configure(
        SparkSession.builder.master("local[2, 4]"), remote="s3a://bucket/secrets", s3_region="us-east-1"
    )
    settings = {
        "spark.hadoop.hadoop.security.credential.provider.path": f"localjceks://file{keys}",
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder / "local"),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    shown: list[dict[str, int]] = []

    def show(frame: DataFrame, _: int) -> None:
        shown.append({row.value: row["count"] for row in frame.collect()})

    (folder / "input").mkdir()
    counted = spark.readStream.text(str(folder / "input")).groupBy("value").count()
    query = None
    for number in range(BATCHES):
        gateway.rotate()
        keys.unlink(missing_ok=True)
        keep_secrets(spark, {"fs.s3a.access.key": gateway.user, "fs.s3a.secret.key": f"secret-{gateway.user}"})
        (folder / f"input/{number}.txt").write_text("word\n")
        if query is None:
            writer = counted.writeStream.outputMode("update").foreachBatch(show)
            query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
        query.processAllAvailable()
    gateway.admin("delete-user", "--access", gateway.user)
    print(json.dumps([batch for batch in shown if batch]))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
