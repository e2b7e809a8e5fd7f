"""Writes rows whose keys rise into table files of bounded size."""

from __future__ import annotations

from pathlib import Path

from pyspark_ckpt.state_store.columns.rows import RowColumns
from pyspark_ckpt.state_store.database import TableWriter, Tuning
from pyspark_ckpt.state_store.errors import InternalError
from pyspark_ckpt.state_store.sst.builder import TableBuilder, begin_table, can_be_built, is_built


class RollingWriter:
    """Writes rows whose keys rise into table files of about ``most_bytes`` each.

    Files are built from many rows at once. RocksDB writes a file if its rows are few, large, or of too many sizes.
    """

    def __init__(self, folder: Path, name: str, tuning: Tuning, most_bytes: int) -> None:
        """Write ``<name>-0.sst`` and so on in ``folder``. There is no file until there are rows."""
        self._folder, self._name, self._tuning, self._most_bytes = folder, name, tuning, most_bytes
        self._paths: list[Path] = []
        self._open: TableBuilder | TableWriter | None = None
        self._last_key = b""

    @property
    def memory_bytes(self) -> int:
        """Estimate the memory held for the file that is being written."""
        return 0 if self._open is None else self._open.memory_bytes

    def write(self, rows: RowColumns) -> None:
        """Write rows. Raises StorageError; for rows out of order InternalError or StorageError."""
        if not len(rows):
            return
        if rows.keys[0] <= self._last_key:
            raise InternalError(f"Rows for {self._folder}/{self._name} are not in the order of keys.")
        if isinstance(self._open, TableBuilder) and not (can_be_built(rows) and self._open.holds(rows)):
            self.finish()
        if self._open is None:
            self._open = self._begin_file(rows)
        if isinstance(self._open, TableBuilder):
            self._open.write(rows)
        else:
            self._open.put_all(rows.keys.strings(), rows.values.strings(), int(rows.values.size.max()))
        self._last_key = rows.keys[len(rows) - 1]
        is_large = isinstance(self._open, TableBuilder) and self._open.memory_bytes > self._most_bytes
        if is_large or self._open.size_bytes > self._most_bytes:
            self.finish()

    def _begin_file(self, rows: RowColumns) -> TableBuilder | TableWriter:
        """Begin the next file, for rows like these."""
        path = self._folder / f"{self._name}-{len(self._paths)}.sst"
        self._paths.append(path)
        return begin_table(path, [rows], self._tuning) if is_built([rows]) else TableWriter(path, self._tuning)

    def finish(self) -> list[Path]:
        """Complete the last file and return all files. Raises StorageError."""
        if self._open is not None:
            self._open.finish()
            self._open = None
        return self._paths
