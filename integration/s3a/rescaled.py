"""Continue a query in s3a: from a savepoint with other partitions, and print its last output.

It then continues in a local checkpoint with its state in s3a:, of which another savepoint is taken.

``python -m integration.s3a.rescaled ROOT FOLDER SETTINGS``: ``SETTINGS`` is a JSON object of the session's confs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import pyspark_ckpt as ckpt


def main(root: str, folder: Path, settings: dict[str, str]) -> None:
    """Count up to a savepoint, and after it."""
    builder = ckpt.configure(SparkSession.builder.master("local[2]"))
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    rows: dict[int, int] = {}

    def keep(frame: DataFrame, _batch: int) -> None:
        rows.update({row.key: row["count"] for row in frame.collect()})

    old, new = f"{root}/old", str(folder / "new")
    for number, (checkpoint, partitions) in enumerate(((old, 2), (new, 3))):
        (folder / "input").mkdir(exist_ok=True)
        pq.write_table(pa.table({"key": list(range(20))}), folder / "input" / f"{number}.parquet")
        spark.conf.set("spark.sql.shuffle.partitions", partitions)
        if number:
            ckpt.savepoint(old, f"{root}/saved")
            spark.conf.set("spark.sql.streaming.stateStore.ckpt.remote", f"{root}/apart")
            ckpt.restore(f"{root}/saved", new, parallelism=partitions)
        stream = spark.readStream.schema("key bigint").parquet(str(folder / "input"))
        query = (
            stream.groupBy("key")
            .count()
            .writeStream.outputMode("update")
            .option("checkpointLocation", checkpoint)
            .foreachBatch(keep)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    ckpt.savepoint(new, str(folder / "saved"))
    print(json.dumps(sorted(rows.items())))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
