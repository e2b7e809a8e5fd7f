"""The table of docs/sinks.md: what each sink has when a query goes back to a savepoint."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import IllegalArgumentException, StreamingQueryException

import pyspark_ckpt as ckpt
from integration.operators.scala_groups import compiled, make_loader
from integration.savepoints.returning import FORMATS, Files
from integration.savepoints.test_running import batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]

PAGE = Path(__file__).parents[2] / "docs" / "sinks.md"
CUTS = {
    "with `replay_from`": {},
    "without it, other rows in each batch": {"maxFilesPerTrigger": "2"},
    "without it, fewer batches than before": {},
}
"""How batches are planned after batch 2, by columns of the table. Before, batches 3 to 5 had a file each."""
NEW = (6, 7, 8)
USERS = list(range(NEW[-1] + 1))


def read_page(sink: str) -> dict[str, str]:
    """The row of a sink in the table: the outcome by the heading of the column."""
    text = PAGE.read_text(encoding="utf-8")
    head, _, *rows = re.findall(r"^\|.*\|$", text[text.index("## What happens in each case") :], re.MULTILINE)
    (row,) = (each for each in rows if each.startswith(f"| {sink} |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    names = [name.strip() for name in head.strip("|").split("|")]
    return {name: cell.split("**")[1] for name, cell in zip(names[1:], cells[1:], strict=True)}


def go_back(files: Files, cut: str, checkpoint: str) -> None:
    """Restore the savepoint, and run what there is."""
    old = files.folder / "old" if "with `" in cut else None
    ckpt.restore(files.folder / "saved", files.folder / checkpoint, replay_from=old)
    files.run(checkpoint, **CUTS[cut])


def describe(found: list[int]) -> str:
    """The outcome, from the rows of a sink."""
    if found == USERS:
        return "each row once"
    return "rows twice" if set(found) == set(USERS) else "rows lost"


@pytest.mark.parametrize("checkpoint_format", FORMATS)
def test_a_sink_of_files_is_as_the_page_says(checkpoint_format: int, spark: SparkSession, tmp_path: Path) -> None:
    files = Files(spark, tmp_path, checkpoint_format, later=(3, 4, 5))
    files.put(*NEW)
    found = {}
    for number, cut in enumerate(reversed(CUTS)):  # the last one writes
        try:
            go_back(files, cut, f"new-{number}")
            found[cut] = describe(files.users())
        except IllegalArgumentException:
            found[cut] = "refused"
    assert found == read_page("files")


@pytest.mark.parametrize("checkpoint_format", FORMATS)
def test_a_sink_that_skips_by_itself_is_as_the_page_says(
    checkpoint_format: int, spark: SparkSession, tmp_path: Path
) -> None:
    """As Delta. Its log is not read: the first batch that it skips is refused, each time the query is started."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    thread = gateway.jvm.Thread.currentThread()
    before = thread.getContextClassLoader()
    thread.setContextClassLoader(make_loader(gateway, compiled(Path(__file__).with_name("SkippingSink.scala"))))
    try:
        files = Files(
            spark,
            tmp_path,
            checkpoint_format,
            lambda writer: writer.format("pyspark_ckpt.tests.SkippingSink").option("path", str(tmp_path / "sink")),
            (3, 4, 5),
        )
        files.put(*NEW)
        found = {}
        for number, cut in enumerate(reversed(CUTS)):
            try:
                go_back(files, cut, f"new-{number}")
                rows = [line for each in (tmp_path / "sink").iterdir() for line in each.read_text().split()]
                found[cut] = describe(sorted(map(int, rows)))
            except StreamingQueryException:
                with pytest.raises(StreamingQueryException, match=r"has a batch 3 already\. It would skip the rows"):
                    files.run(f"new-{number}")
                assert batches(tmp_path / f"new-{number}", "offsets") == [1, 2]
                found[cut] = "refused"
    finally:
        thread.setContextClassLoader(before)
    assert found == read_page("Delta")


class Tables:
    """The sinks of foreachBatch functions, one table for each."""

    def __init__(self, database: Path) -> None:
        """Begin in an empty database."""
        self.database = database
        with closing(sqlite3.connect(database)) as tables, tables:
            tables.execute("CREATE TABLE batches (query TEXT, batch INT, PRIMARY KEY (query, batch))")
            for name in TABLES:
                tables.execute(f"CREATE TABLE {name} (batch INT, user INT)")

    def write(self, rows: DataFrame, batch: int) -> None:
        """Take a batch: once, in place of the one of that number, and once more."""
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        lines = [(batch, row.user) for row in rows.collect()]
        with closing(sqlite3.connect(self.database)) as tables, tables:
            if tables.execute("INSERT INTO batches VALUES (?, ?) ON CONFLICT DO NOTHING", (query, batch)).rowcount:
                tables.executemany("INSERT INTO noted VALUES (?, ?)", lines)
            tables.execute("DELETE FROM replaced WHERE batch = ?", (batch,))
            tables.executemany("INSERT INTO replaced VALUES (?, ?)", lines)
            tables.executemany("INSERT INTO appended VALUES (?, ?)", lines)

    def users(self, table: str) -> list[int]:
        """The rows of a table."""
        with closing(sqlite3.connect(self.database)) as tables:
            return sorted(user for (user,) in tables.execute(f"SELECT user FROM {table}"))  # noqa: S608


TABLES = {"noted": "notes the batch", "replaced": "replaces", "appended": "appends"}


def test_foreach_batch_functions_are_as_the_page_says(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(tmp_path / "old.db")

    def write(rows: DataFrame, batch: int) -> None:
        tables.write(rows, batch)

    files = Files(spark, tmp_path, FORMATS[-1], lambda writer: writer.foreachBatch(write), (3, 4, 5))
    files.put(*NEW)
    found: dict[str, dict[str, str]] = {name: {} for name in TABLES}
    for number, cut in enumerate(CUTS):
        tables.database = Path(shutil.copy(tmp_path / "old.db", tmp_path / f"{number}.db"))
        go_back(files, cut, f"new-{number}")
        for name in TABLES:
            found[name][cut] = describe(tables.users(name))
    assert found == {name: read_page(row) for name, row in TABLES.items()}
