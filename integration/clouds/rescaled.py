"""Continue queries whose state is in a cloud from savepoints there, with other partitions, and state in another cloud.

``python -m integration.clouds.rescaled FOLDER SETTINGS SECRETS ROOT...``: ``SETTINGS`` is a JSON object of confs of the
session, ``SECRETS`` one of what its credential file gets. Prints what the queries of each root show.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import pyspark_ckpt as ckpt

REMOTE = "spark.sql.streaming.stateStore.ckpt.remote"


def main(folder: Path, settings: dict[str, str], secrets: dict[str, str], *roots: str) -> None:
    """Count up to a savepoint, and after it, for each root."""
    builder = ckpt.configure(SparkSession.builder.master("local[2]"))
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    keep_secrets(spark, secrets)
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


def keep_secrets(spark: SparkSession, secrets: dict[str, str]) -> None:
    """Write secrets into the credential file that is set in the session."""
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    (file,) = jvm.org.apache.hadoop.security.alias.CredentialProviderFactory.getProviders(conf)
    for name, secret in secrets.items():
        characters = gateway.new_array(jvm.char, len(secret))
        for number, character in enumerate(secret):
            characters[number] = character
        file.createCredentialEntry(name, characters)
    file.flush()


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
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3]), *sys.argv[4:])
