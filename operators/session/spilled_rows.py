"""Rows that a task stages before the turn of their keys is over, and still has to read.

The table files of a commit cannot be read before the commit. Rows that are staged early are therefore also kept in a
database of the task's own, in which a deleted row has a value that marks it as deleted.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from pyspark_ckpt.operators.rows.base import UNREAD
from pyspark_ckpt.state_store.database import Cursor, Database, Reader, TableWriter, Tuning

PORTION = 1024
_DELETED, _THERE = b"\x00", b"\x01"


class SpilledRows:
    """Spilled rows. Reads return what was written last."""

    def __init__(self, folder: Path, tuning: Tuning) -> None:
        """Create ``folder`` and keep the rows in it. Raises StorageError."""
        folder.mkdir(mode=0o700)
        self._folder, self._tuning = folder, tuning
        self._files = 0
        self._database = Database(folder / "rows", tuning)
        self._reader = Reader(folder / "rows", tuning, folder / "reader")

    def keep(self, rows: Iterable[tuple[bytes, bytes | None]]) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield ``rows``, which are sorted by key. Reads find them once all were taken. Raises StorageError."""
        path = self._folder / f"{self._files}.sst"
        self._files += 1
        remaining = iter(rows)
        writer: TableWriter | None = None
        while portion := list(islice(remaining, PORTION)):
            writer = writer or TableWriter(path, self._tuning)
            values = [_DELETED if value is None else _THERE + value for _, value in portion]
            writer.put_all([key for key, _ in portion], values, max(map(len, values)))
            yield from portion
        if writer is not None:
            writer.finish()
            self._database.ingest([path])
            self._reader.catch_up()

    def over(self, keys: list[bytes], values: list[bytes | None]) -> list[bytes | None]:
        """Return the newest values of ``keys``: the spilled ones, and ``values`` for keys that were not spilled."""
        found = (UNREAD if row is None else _value(row) for row in self._reader.get_many(keys))
        return [value if row is UNREAD else row for row, value in zip(found, values, strict=True)]

    def scan(self, prefix: bytes, begin: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        """Return the rows whose keys are ``prefix`` and an entry from ``begin`` up to ``end``. None: a deleted row.

        Lazily, as they were when this was called.
        """
        cursor = self._reader.cursor()
        cursor.seek(prefix + begin)
        return _rows_from(cursor, prefix, end)

    def close(self) -> None:
        """Close the database and delete its folder."""
        self._reader.close()
        self._database.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _rows_from(cursor: Cursor, prefix: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
    while cursor.key is not None and cursor.key.startswith(prefix):
        entry = cursor.key[len(prefix) :]
        if end is not None and entry >= end:
            break
        yield entry, _value(cursor.value())
        cursor.next()


def _value(row: bytes) -> bytes | None:
    return None if row == _DELETED else row[len(_THERE) :]
