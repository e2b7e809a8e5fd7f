"""Rows whose keys rise, in table files of bounded size."""

from __future__ import annotations

from pathlib import Path

from pyspark_ckpt.state_store.bulk.rows import RowColumns
from pyspark_ckpt.state_store.bulk.table_builder import Shape, TableBuilder
from pyspark_ckpt.state_store.database import TableWriter, Tuning

LEAST_ROWS = 64
"""A file that begins with fewer is written by RocksDB."""


class RollingWriter:
    """Writes rows whose keys rise into table files, one after the other, of about ``most_bytes`` each.

    Files of rows that are all of one size are built at once; where sizes differ, RocksDB writes a file row by row.
    """

    def __init__(self, folder: Path, name: str, tuning: Tuning, most_bytes: int) -> None:
        """Write ``<name>-0.sst`` and so on in ``folder``; none as long as there are no rows."""
        self._folder, self._name, self._tuning, self._most_bytes = folder, name, tuning, most_bytes
        self._paths: list[Path] = []
        self._open: TableBuilder | TableWriter | None = None

    @property
    def memory_bytes(self) -> int:
        """About what is held of the file that is being written."""
        return 0 if self._open is None else self._open.memory_bytes

    def write(self, rows: RowColumns) -> None:
        """Write rows. Raises StorageError, and for rows out of order InternalError or StorageError."""
        if not len(rows):
            return
        if not isinstance(self._open, TableWriter):
            shape = Shape.of(rows)
            if self._open is not None and not self._open.shape.holds(shape):
                self.finish()
            if self._open is None:
                self._open = self._begun(shape if len(rows) >= LEAST_ROWS else None)
        if isinstance(self._open, TableBuilder):
            self._open.write(rows)
        else:
            self._open.put_all(rows.keys.strings(), rows.values.strings())
        if self._open.size_bytes > self._most_bytes:
            self.finish()

    def _begun(self, shape: Shape | None) -> TableBuilder | TableWriter:
        path = self._folder / f"{self._name}-{len(self._paths)}.sst"
        self._paths.append(path)
        return TableWriter(path, self._tuning) if shape is None else TableBuilder(path, shape, self._tuning)

    def finish(self) -> list[Path]:
        """All files, complete. Raises StorageError."""
        if self._open is not None:
            self._open.finish()
            self._open = None
        return self._paths
