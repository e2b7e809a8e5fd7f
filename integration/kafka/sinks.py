"""Sinks that know the batches of a query by their numbers, and what is in them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

Row: TypeAlias = tuple[str, int, int, int]
"""A user, and up to now the number of its records, and the sums of their amounts and offsets."""

_TABLES = """
CREATE TABLE IF NOT EXISTS batches (query TEXT, batch INTEGER, times INTEGER, PRIMARY KEY (query, batch));
CREATE TABLE IF NOT EXISTS rows (batch INTEGER, user TEXT, records INTEGER, total INTEGER, offsets INTEGER);
"""


def write_over(folder: Path, query: str, batch: int, rows: Sequence[Row]) -> None:
    """Make ``rows`` the content of a batch, also if it has one: an idempotent sink."""
    path = folder / query / f"{batch}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_suffix(".staged")
    staged.write_text(json.dumps(rows), encoding="utf-8")
    staged.replace(path)


def write_in_transaction(path: Path, query: str, batch: int, rows: Sequence[Row]) -> None:
    """Append the rows of a batch and note its number in one transaction; a batch that is noted is passed over."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript(_TABLES)
        with database:
            noted = "INSERT INTO batches VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET times = times + 1 RETURNING times"
            ((times,),) = database.execute(noted, (query, batch)).fetchall()
            if times == 1:
                database.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", [(batch, *row) for row in rows])


def written_over(folder: Path) -> dict[int, list[Row]]:
    """The batches of the only query that has written into the idempotent sink."""
    (query,) = folder.iterdir()
    found = {int(path.stem): json.loads(path.read_text(encoding="utf-8")) for path in query.glob("*.json")}
    return {batch: list(map(tuple, rows)) for batch, rows in sorted(found.items())}


def written_in_transactions(path: Path) -> tuple[dict[int, int], dict[int, list[Row]]]:
    """How often each batch has come to the transactional sink, and the rows of the batches."""
    with closing(sqlite3.connect(path)) as database:
        times = dict(database.execute("SELECT batch, times FROM batches ORDER BY batch").fetchall())
        found: dict[int, list[Row]] = {batch: [] for batch in times}
        for batch, *row in database.execute("SELECT batch, user, records, total, offsets FROM rows ORDER BY rowid"):
            found[batch].append((row[0], row[1], row[2], row[3]))
    return times, found


def final(batches: dict[int, list[Row]]) -> dict[str, Row]:
    """The last row of each user."""
    return {row[0]: row for _, rows in sorted(batches.items()) for row in rows}
