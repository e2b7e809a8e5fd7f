"""Sinks by what they remember of batches, and what is in them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from integration import delta
from integration.operators.scala_groups import compiled, make_loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True)
class Kind:
    """How a query writes into a folder, and the rows that are there, by names of sinks."""

    write: Callable[[DataStreamWriter, Path], DataStreamWriter]
    read: Callable[[Path], dict[str, list[int]]]


def _write_files(writer: DataStreamWriter, folder: Path) -> DataStreamWriter:
    return writer.format("json").option("path", str(folder))


def _read_files(folder: Path) -> dict[str, list[int]]:
    return {"files": [json.loads(line)["user"] for part in folder.glob("part-*.json") for line in _lines(part)]}


def write_skipping(writer: DataStreamWriter, folder: Path) -> DataStreamWriter:
    """Write to ``SkippingSink``, within ``skipping_sink``."""
    return writer.format("pyspark_ckpt.tests.SkippingSink").option("path", str(folder))


@contextmanager
def skipping_sink(spark: SparkSession) -> Iterator[None]:
    """Let queries that are started meanwhile find ``SkippingSink``."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    thread = gateway.jvm.Thread.currentThread()
    before = thread.getContextClassLoader()
    thread.setContextClassLoader(make_loader(gateway, compiled(Path(__file__).with_name("SkippingSink.scala"))))
    try:
        yield
    finally:
        thread.setContextClassLoader(before)


def read_skipping(folder: Path) -> dict[int, list[str]]:
    """The lines of each batch."""
    return {int(batch.name): _lines(batch) for batch in folder.glob("*/*")}


def _write_delta(writer: DataStreamWriter, folder: Path) -> DataStreamWriter:
    return writer.format("delta").option("path", str(folder)) if delta.JARS else write_skipping(writer, folder)


def _read_delta(folder: Path) -> dict[str, list[int]]:
    if not delta.JARS:
        return {"Delta": [int(line) for batch in folder.glob("*/*") for line in _lines(batch)]}
    log = [json.loads(line) for entry in sorted((folder / "_delta_log").glob("*.json")) for line in _lines(entry)]
    parts = [folder / action["add"]["path"] for action in log if "add" in action]
    return {"Delta": [user for part in parts for user in pq.read_table(part)["user"].to_pylist()]}


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


TABLES = {"noted": "notes the batch", "replaced": "replaces", "appended": "appends"}
"""The sinks of foreachBatch functions, by their tables."""


def _write_tables(writer: DataStreamWriter, folder: Path) -> DataStreamWriter:
    def write(rows: DataFrame, batch: int) -> None:
        """Take a batch: once, in place of the one of that number, and once more."""
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        lines = [(batch, row.user) for row in rows.collect()]
        with _open_tables(folder) as tables, tables:
            if tables.execute("INSERT INTO batches VALUES (?, ?) ON CONFLICT DO NOTHING", (query, batch)).rowcount:
                tables.executemany("INSERT INTO noted VALUES (?, ?)", lines)
            tables.execute("DELETE FROM replaced WHERE batch = ?", (batch,))
            tables.executemany("INSERT INTO replaced VALUES (?, ?)", lines)
            tables.executemany("INSERT INTO appended VALUES (?, ?)", lines)

    return writer.foreachBatch(write)


def _read_tables(folder: Path) -> dict[str, list[int]]:
    with _open_tables(folder) as tables:
        return {
            sink: [user for (user,) in tables.execute(f"SELECT user FROM {table}")]  # noqa: S608
            for table, sink in TABLES.items()
        }


@contextmanager
def _open_tables(folder: Path) -> Iterator[sqlite3.Connection]:
    folder.mkdir(exist_ok=True)
    with closing(sqlite3.connect(folder / "tables.db")) as tables:
        tables.execute("CREATE TABLE IF NOT EXISTS batches (query TEXT, batch INT, PRIMARY KEY (query, batch))")
        for name in TABLES:
            tables.execute(f"CREATE TABLE IF NOT EXISTS {name} (batch INT, user INT)")
        yield tables


KINDS = {
    "files": Kind(_write_files, _read_files),
    "Delta": Kind(_write_delta, _read_delta),
    "foreachBatch": Kind(_write_tables, _read_tables),
}
