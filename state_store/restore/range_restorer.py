"""Restore a range of the keys of a version, and fetch little more than the files that may hold it.

A manifest records the first and the last key of every table file. Table files of a snapshot whose keys are all outside
the range are not fetched. RocksDB opens such a folder read-only and fails only when it reads from a missing file. The
rows in the range are copied to a new database, into which the later deltas are ingested as in any restore: rows that a
delta deletes are gone, and rows that it changes are changed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.database import Database, Tuning, write_table_file
from pyspark_ckpt.state_store.errors import CkptError
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.format.keys import MARKER_KEY, Marker
from pyspark_ckpt.state_store.format.manifest import Manifest, ManifestFile
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.restore.restorer import SNAPSHOT, Restorer, UnusableBaseError
from pyspark_ckpt.state_store.snapshots.restore_forecast import RestoreForecast

Range: TypeAlias = tuple[bytes, bytes]
"""The first key (inclusive) and the end (exclusive)."""


class RangeRestorer(Restorer):
    """Restores the rows of one range of keys of a store. Rows of other keys may be there or not."""

    def __init__(
        self, place: BlobPlace, wanted: Range, tuning: Tuning, pool: Executor, log: StoreLog, store: str
    ) -> None:
        """Read the range ``wanted`` from ``place``, with the threads of ``pool``."""
        super().__init__(place, tuning, pool, FailPoints(""), RestoreForecast(), log, store, checks_tables=True)
        self._begin, self._end = wanted
        self._left: dict[str, ManifestFile] = {}

    def _choose_files(self, manifest: Manifest) -> Sequence[ManifestFile]:
        """Return the files that are fetched. Files without keys are RocksDB's own and always needed."""
        self._left = {file.name: file for file in manifest.files if self._is_outside(file)}
        return [file for file in manifest.files if file.name not in self._left]

    def _is_outside(self, file: ManifestFile) -> bool:
        if file.first_key is None or file.last_key is None:
            return False
        return file.last_key < self._begin or file.first_key >= self._end

    def _open(self, base: Marker, kind: str, folder: Path) -> Database:
        """Open the snapshot if no file was left out, else a new database with the rows of the range."""
        if kind != SNAPSHOT or not self._left:
            return super()._open(base, kind, folder)
        snapshot = folder.rename(folder.with_name("snapshot"))
        database = None
        try:
            self._complete(snapshot)
            database = Database(folder, self._tuning)
            table = snapshot / "range"
            self._copy_range(base, snapshot, table)
            database.ingest([table])
        except CkptError as problem:
            if database is not None:
                database.close()
            raise UnusableBaseError(f"the {kind} of {base} cannot be read: {problem}") from problem
        return database

    def _complete(self, snapshot: Path) -> None:
        """Fetch the other files that a scan opens: all of level 0, and in each other level the file where it begins."""
        partial = Database(snapshot, self._tuning, read_only=True, may_lack_tables=True)
        try:
            tables = partial.table_files()
        finally:
            partial.close()
        opened = [table for table in tables if table.level == 0]
        for level in {table.level for table in tables if table.level}:
            from_begin = [table for table in tables if table.level == level and table.last_key >= self._begin]
            opened += [min(from_begin, key=lambda table: table.first_key)] if from_begin else []
        lacking = [self._left[table.name] for table in opened if table.name in self._left]
        for fetched in [self._pool.submit(self._place_file, file, snapshot) for file in lacking]:
            fetched.result()

    def _copy_range(self, base: Marker, snapshot: Path, table: Path) -> None:
        """Write the rows of the range to a table file. All files have been checked: the marker is that of ``base``."""
        partial = Database(snapshot, self._tuning, read_only=True, may_lack_tables=True)
        try:
            write_table_file(
                table, chain([(MARKER_KEY, base.encode())], partial.rows_in(self._begin, self._end)), self._tuning
            )
        finally:
            partial.close()


@contextmanager
def restore_range(
    place: BlobPlace, commit: Marker, wanted: Range, tuning: Tuning, pool: Executor, store: str
) -> Iterator[Database]:
    """Open a database in a temporary folder that has the rows of a range of keys at ``commit``.

    It may have other rows, too. Raises NotFoundError, InvalidInputError, FormatError, StorageError as a restore does.
    """
    with tempfile.TemporaryDirectory(prefix="pyspark-ckpt-") as folder:
        restorer = RangeRestorer(place, wanted, tuning, pool, StoreLog(f"read.{store}", store), store)
        restored = restorer.restore(commit, Path(folder), set(), lambda _commit, _folder: None)
        try:
            yield restored.database
        finally:
            restored.database.close()
