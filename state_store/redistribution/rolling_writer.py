"""Writes rows whose keys rise into table files of bounded size."""

from __future__ import annotations

from pathlib import Path

from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.database import TableWriter, Tuning
from pyspark_ckpt.state_store.errors import InternalError


class RollingWriter:
    """Writes rows whose keys rise into table files of about ``max_bytes`` each."""

    def __init__(self, folder: Path, name: str, tuning: Tuning, max_bytes: int) -> None:
        """Write ``<name>-0.sst`` and so on in ``folder``. There is no file until there are rows."""
        self._folder, self._name, self._tuning, self._max_bytes = folder, name, tuning, max_bytes
        self._paths: list[Path] = []
        self._open: TableWriter | None = None
        self._last_key = b""

    @property
    def memory_bytes(self) -> int:
        """Estimate the memory held for the file that is being written."""
        return 0 if self._open is None else self._open.memory_bytes

    def write(self, rows: PackedRows) -> None:
        """Write rows. Raises StorageError; for rows out of order InternalError or StorageError."""
        if not len(rows):
            return
        if rows.keys[0] <= self._last_key:
            raise InternalError(f"Rows for {self._folder}/{self._name} are not in the order of keys.")
        if self._open is None:
            path = self._folder / f"{self._name}-{len(self._paths)}.sst"
            self._paths.append(path)
            self._open = TableWriter(path, self._tuning)
        self._open.put_all(rows.keys.strings(), rows.values.strings(), int(rows.values.size.max()))
        self._last_key = rows.keys[len(rows) - 1]
        if self._open.size_bytes > self._max_bytes:
            self.finish()

    def finish(self) -> list[Path]:
        """Complete the last file and return all files. Raises StorageError."""
        if self._open is not None:
            self._open.finish()
            self._open = None
        return self._paths
