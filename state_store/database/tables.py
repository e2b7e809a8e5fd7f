"""Table files: those that a database has, and those that are written to be ingested."""

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
    """One SST of a database: its file name, key range, number of rows (a deletion counts as one) and level."""

    name: str
    size_bytes: int
    first_key: bytes
    last_key: bytes
    rows: int
    level: int


@dataclass(frozen=True)
class TableCount:
    """How many SSTs a database has, and their bytes together."""

    files: int
    size_bytes: int


WRITER_ROW_BYTES = 16
"""For the filters, until a file is complete."""
WRITER_BUFFER_BYTES = 1 << 20
"""What is not yet in the file, at most."""


class TableWriter:
    """Writes one table file, whose rows are given in the order of their keys."""

    def __init__(self, path: Path, tuning: Tuning) -> None:
        """Begin the new file ``path``. Raises StorageError."""
        self._what = f"write the table file {path}"
        with failures(self._what):
            self._writer = rocksdict.SstFileWriter(tuning.options())
            self._writer.open(str(path))

    @property
    def size_bytes(self) -> int:
        """Bytes of the file so far."""
        return int(self._writer.file_size())

    def put_all(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write rows. Raises StorageError, also for rows out of order."""
        with failures(self._what):
            deque(map(self._writer.__setitem__, keys, values), maxlen=0)

    def finish(self) -> None:
        """Make the file complete. Raises StorageError."""
        with failures(self._what):
            self._writer.finish()


class RollingWriter:
    """Writes rows whose keys rise into table files, one after the other, of about ``most_bytes`` each."""

    def __init__(self, folder: Path, name: str, tuning: Tuning, most_bytes: int) -> None:
        """Write ``<name>-0.sst`` and so on in ``folder``; none as long as there are no rows."""
        self._folder, self._name, self._tuning, self._most_bytes = folder, name, tuning, most_bytes
        self._paths: list[Path] = []
        self._open: TableWriter | None = None
        self._rows = self._largest_bytes = 0

    @property
    def memory_bytes(self) -> int:
        """About what RocksDB holds of the file that is being written."""
        if self._open is None:
            return 0
        buffer_bytes = min(self._open.size_bytes, WRITER_BUFFER_BYTES)
        return self._rows * WRITER_ROW_BYTES + buffer_bytes + self._largest_bytes

    def put_all(self, keys: Sequence[bytes], values: Sequence[bytes], largest_bytes: int = 0) -> None:
        """Write rows, no value larger than ``largest_bytes``. Raises StorageError, also for rows out of order."""
        if self._open is None:
            self._paths.append(self._folder / f"{self._name}-{len(self._paths)}.sst")
            self._open = TableWriter(self._paths[-1], self._tuning)
        self._open.put_all(keys, values)
        self._rows += len(keys)
        self._largest_bytes = max(self._largest_bytes, largest_bytes)
        if self._open.size_bytes > self._most_bytes:
            self.finish()

    def finish(self) -> list[Path]:
        """All files, complete. Raises StorageError."""
        if self._open is not None:
            self._open.finish()
            self._open, self._rows, self._largest_bytes = None, 0, 0
        return self._paths


def write_table_file(path: Path, rows: Iterable[tuple[bytes, bytes | None]], tuning: Tuning) -> int:
    """Write rows, sorted by key without duplicates, as one table file; a value of None deletes its key.

    Returns how many rows that were; at least one is needed. Raises StorageError, also for rows out of order.
    """
    count = 0
    with failures(f"write the table file {path}"):
        writer = rocksdict.SstFileWriter(tuning.options())
        writer.open(str(path))
        for count, (key, value) in enumerate(rows, 1):  # noqa: B007 - what is left of it is the result
            if value is None:
                del writer[key]
            else:
                writer[key] = value
        writer.finish()
    return count
