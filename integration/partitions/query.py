"""The driver of a query on the cluster: ``python -m integration.partitions.query <settings as JSON>``.

It counts the words of files. When there is a file ``complete``, no more come: it ends when it has read all. A batch
writes its rows into a file of the sink, with a name of its own for each attempt.
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOOK_S = 1


def main() -> None:
    """Run the query to its end."""
    settings = json.loads(sys.argv[1])
    builder = SparkSession.builder
    for name, value in settings["confs"].items():
        builder = builder.config(name, value)
    spark = ckpt.configure(builder, **settings["options"]).getOrCreate()
    sink = Path(settings["sink"])

    def write(rows: DataFrame, batch: int) -> None:
        found = {row.value: row["count"] for row in rows.collect()}
        path = sink / f"{batch}-{uuid.uuid4().hex}"
        path.with_suffix(".part").write_text(json.dumps(found, sort_keys=True), encoding="utf-8")
        path.with_suffix(".part").rename(path)

    words = spark.readStream.option("maxFilesPerTrigger", 1).text(settings["lines"])
    writer = words.groupBy("value").count().writeStream.outputMode("update").foreachBatch(write)
    query = writer.option("checkpointLocation", settings["checkpoint"]).start()
    while not Path(settings["complete"]).exists():
        query.awaitTermination(LOOK_S)
    query.processAllAvailable()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
