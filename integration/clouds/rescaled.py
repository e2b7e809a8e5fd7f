"""Continue queries whose state is in a cloud from savepoints there, with other partitions, and state in another cloud.

``python -m integration.clouds.rescaled FOLDER SETTINGS ROOT...``: ``SETTINGS`` is a JSON object of the session's confs.
Prints the last output of the query of each root.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import pyspark_ckpt as ckpt

REMOTE = "spark.sql.streaming.stateStore.ckpt.remote"


def main(folder: Path, settings: dict[str, str], *roots: str) -> None:
    """Count up to a savepoint, and after it, for each root."""
    builder = ckpt.configure(SparkSession.builder.master("local[2]"))
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    found = []
    for number, root in enumerate(roots):
        own, checkpoints = folder / str(number), [str(folder / str(number) / name) for name in ("old", "new", "newest")]
        (own / "input").mkdir(parents=True)
        spark.conf.set(REMOTE, root)
        found.append(count(spark, own / "input", checkpoints[0], 2))
        ckpt.savepoint(checkpoints[0], f"{root}/saved")
        spark.conf.set(REMOTE, roots[number - 1])
        ckpt.restore(f"{root}/saved", checkpoints[1], parallelism=3)
        found.append(count(spark, own / "input", checkpoints[1], 3))
        ckpt.savepoint(checkpoints[1], f"{root}/saved again", kind="canonical")
        ckpt.restore(f"{root}/saved again", checkpoints[2], parallelism=5, query_id="new")
        found.append(count(spark, own / "input", checkpoints[2], 5))
    print(json.dumps(found))
    spark.stop()


def count(spark: SparkSession, inputs: Path, checkpoint: str, partitions: int) -> list[tuple[int, int]]:
    """Add a file to the input of the query, let it read that, and return what it shows."""
    rows: dict[int, int] = {}

    def keep(frame: DataFrame, _batch: int) -> None:
        rows.update({row.key: row["count"] for row in frame.collect()})

    pq.write_table(pa.table({"key": list(range(20))}), inputs / f"{partitions}.parquet")
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    query = (
        spark.readStream.schema("key bigint")
        .parquet(str(inputs))
        .groupBy("key")
        .count()
        .writeStream.outputMode("update")
        .option("checkpointLocation", checkpoint)
        .foreachBatch(keep)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(rows.items())


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), *sys.argv[3:])
