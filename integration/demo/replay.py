"""The program that is killed and started again: running statistics over the stream of flights, and a keyed operator.

``python -m integration.demo.replay FOLDER PROVIDER PARTITIONS`` reads FOLDER/flights, keeps its checkpoints in
FOLDER/checkpoints, writes one file of changed rows for a statistic and batch into FOLDER/results and says so
on stdout. It knows nothing of having run before: what it needs of the past is in the checkpoints.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

import pyspark_ckpt
from integration.demo import pauses
from integration.demo.flights import LATE_AFTER_MIN, STATISTICS, Statistic

SPARK_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def main(folder: Path, provider: str, partitions: str) -> None:
    """Run all statistics until every file of the stream has been read."""
    spark = open_session(folder, provider, partitions)
    flights = read_stream(spark, folder / "flights")
    streams = {statistic.name: running(flights, statistic).writeStream.outputMode("update") for statistic in STATISTICS}
    if provider == "ckpt":
        streams[pauses.NAME] = pauses.pauses(flights).writeStream.outputMode("append")
    queries = [
        stream.queryName(name)
        .option("checkpointLocation", str(folder / "checkpoints" / name))
        .foreachBatch(writer(folder / "results", name))
        .trigger(availableNow=True)
        .start()
        for name, stream in streams.items()
    ]
    for query in queries:
        query.awaitTermination()
    spark.stop()


def open_session(folder: Path, provider: str, partitions: str) -> SparkSession:
    """A local session of two cores on our state store, or on Spark's own."""
    builder = SparkSession.builder.master("local[2]").appName("flights")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "spark"),
        "spark.log.level": "WARN",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": partitions,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    if provider == "spark":
        builder = builder.config("spark.sql.streaming.stateStore.providerClass", SPARK_PROVIDER)
    else:
        builder = pyspark_ckpt.configure(builder)
    return builder.getOrCreate()


def read_stream(spark: SparkSession, folder: Path) -> DataFrame:
    """One file a batch, in the order of time."""
    schema = "carrier string, tailnum string, origin string, dep_delay int, departure timestamp"
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def running(flights: DataFrame, statistic: Statistic) -> DataFrame:
    """The statistic as a streaming aggregation; hours end with the watermark, the others go on for ever."""
    if "hour" in statistic.keys:
        hour = F.window("departure", "1 hour")
        groups = flights.withWatermark("departure", "2 hours").groupBy(hour, "origin")
    else:
        groups = flights.groupBy(*statistic.keys)
    counted = groups.agg(
        F.count("*").alias("flights"),
        F.count_if(F.col("dep_delay").isNull()).alias("cancelled"),
        F.count_if(F.col("dep_delay") > LATE_AFTER_MIN).alias("late"),
        F.sum("dep_delay").alias("delay_min"),
        F.max("dep_delay").alias("worst_min"),
    )
    return counted.withColumn("hour", F.col("window.start")).drop("window") if "hour" in statistic.keys else counted


def writer(results: Path, name: str) -> Callable[[DataFrame, int], None]:
    """Write what a batch changed under the batch's number: a batch that runs again replaces its own file."""
    folder = results / name
    folder.mkdir(parents=True, exist_ok=True)

    def write(changed: DataFrame, batch: int) -> None:
        table = changed.toArrow()
        table = table.append_column("batch", pa.array([batch] * table.num_rows, pa.int64()))
        unfinished = folder / f"{batch:05d}.part"
        pq.write_table(table, unfinished)
        unfinished.replace(folder / f"{batch:05d}.parquet")
        # In one piece: the batches of several queries end in threads of their own.
        sys.stdout.write(json.dumps({"statistic": name, "batch": batch}) + "\n")
        sys.stdout.flush()

    return write


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
