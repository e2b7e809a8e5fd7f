"""Runs a query on Spark's own provider, and once more in a session with ours, which warns that it has not moved.

``python -m integration.adoption.unmoved FOLDER``
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from integration.operators.providers import OURS, ROCKSDB


def main(folder: Path) -> None:
    builder = ckpt.configure(SparkSession.builder.master("local[1]"))
    builder = builder.config("spark.log.level", "WARN").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    for provider, checkpoint in ((ROCKSDB, "old"), (OURS, "old"), (OURS, "new"), (ROCKSDB, "old")):
        print(f"=== {provider.name}, {checkpoint}", file=sys.stderr, flush=True)
        rows = provider.session(spark).readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
        writer = rows.groupBy("value").count().writeStream.format("noop").outputMode("update")
        query = writer.option("checkpointLocation", str(folder / checkpoint)).start()
        while (query.lastProgress or {"batchId": -1})["batchId"] < 1 and query.exception() is None:
            query.awaitTermination(1)
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
