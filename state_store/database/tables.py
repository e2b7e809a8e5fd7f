"""Table files: those of a database, and those to be ingested."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import rocksdict

from pyspark_ckpt.state_store.database.failures import failures
from pyspark_ckpt.state_store.database.tuning import Tuning


@dataclass(frozen=True)
class TableFile:
    """One SST of a database: its file name, size, key range, number of rows (a deletion is one) and level."""

    name: str
    size_bytes: int
    first_key: bytes
    last_key: bytes
    rows: int
    level: int


def list_table_files(database: rocksdict.Rdict) -> list[TableFile]:
    """Return every SST of a database, newer ones first: level by level. Only level 0 has several files for one key."""
    return [
        TableFile(
            name=str(file["name"]).lstrip("/"),
            size_bytes=int(file["size"]),
            first_key=bytes(file["start_key"] or b""),
            last_key=bytes(file["end_key"] or b""),
            rows=int(file["num_entries"]),
            level=int(file["level"]),
        )
        for file in database.live_files()
    ]


@dataclass(frozen=True)
class TableCount:
    """How many SSTs a database has, and their total size."""

    files: int
    size_bytes: int

    @classmethod
    def of(cls, tables: Sequence[TableFile]) -> TableCount:
        """Count ``tables``."""
        return cls(len(tables), sum(table.size_bytes for table in tables))


WRITER_ROW_BYTES = 16
"""Memory for each row until a file is complete, for the filters."""
WRITER_BUFFER_BYTES = 1 << 20
"""The maximum number of bytes not yet in the file."""


class TableWriter:
    """Writes one table file from rows in key order."""

    def __init__(self, path: Path, tuning: Tuning) -> None:
        """Begin the new file ``path``. Raises StorageError."""
        self._what = f"write the table file {path}"
        with failures(self._what):
            self._writer = rocksdict.SstFileWriter(tuning.options())
            self._writer.open(str(path))
        self._rows = self._largest_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the file so far."""
        return int(self._writer.file_size())

    @property
    def memory_bytes(self) -> int:
        """Estimate the memory that RocksDB holds for the file."""
        buffer_bytes = min(self.size_bytes, WRITER_BUFFER_BYTES)
        return self._rows * WRITER_ROW_BYTES + buffer_bytes + self._largest_bytes

    def put_all(self, keys: Sequence[bytes], values: Sequence[bytes], largest_bytes: int) -> None:
        """Write rows, of which no value exceeds ``largest_bytes``. Raises StorageError, also for rows out of order."""
        with failures(self._what):
            deque(map(self._writer.__setitem__, keys, values), maxlen=0)
        self._rows += len(keys)
        self._largest_bytes = max(self._largest_bytes, largest_bytes)

    def finish(self) -> None:
        """Complete the file. Raises StorageError."""
        with failures(self._what):
            self._writer.finish()


def write_table_file(path: Path, rows: Iterable[tuple[bytes, bytes | None]], tuning: Tuning) -> int:
    """Write rows, sorted by key without duplicates, as one table file. A value of None deletes its key.

    Returns the number of rows; there must be at least one. Raises StorageError, also for rows out of order.
    """
    count = 0
    with failures(f"write the table file {path}"):
        writer = rocksdict.SstFileWriter(tuning.options())
        writer.open(str(path))
        for count, (key, value) in enumerate(rows, 1):  # noqa: B007 - its last value is the result
            if value is None:
                del writer[key]
            else:
                writer[key] = value
        writer.finish()
    return count
