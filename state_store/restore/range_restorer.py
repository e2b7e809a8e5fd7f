"""Restore a range of the keys of a version, and fetch little more than the files that may hold it.

A manifest records the first and the last key of every table file. A snapshot's table files whose keys are all outside
the range are not fetched. RocksDB opens such a folder read-only and fails only when it reads from a missing file. The
rows in the range are copied to a new database, into which the later deltas are ingested as in any restore: rows that a
delta deletes are gone, and rows that it changes are changed.

The files fetched and verified for one range stay in a folder, so that nothing is fetched twice for the next one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import Executor
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeAlias

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.database import Database, TableFile, Tuning, write_table_file
from pyspark_ckpt.state_store.errors import CkptError
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.format.delta import Delta
from pyspark_ckpt.state_store.format.keys import MARKER_KEY, Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.manifest import Manifest, ManifestFile
from pyspark_ckpt.state_store.format.names import DeltaName
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.restore.store_restorer import SNAPSHOT, StoreRestorer, UnusableBaseError
from pyspark_ckpt.state_store.snapshots.restore_forecast import RestoreForecast

Range: TypeAlias = tuple[bytes, bytes]
"""The first key (inclusive) and the end (exclusive)."""

SMALL_BYTES = 32 << 10


class _RangeRestorer(StoreRestorer):
    """Restores ranges of the keys of a store, one after the other. Rows of other keys may or may not be there."""

    def __init__(self, place: BlobPlace, tuning: Tuning, pool: Executor, store: str, fetched: Path) -> None:
        """Read from ``place``, with the threads of ``pool``. Fetched files stay in the existing folder ``fetched``."""
        log = StoreLog(f"read.{store}", store)
        super().__init__(place, tuning, pool, FailPoints(""), RestoreForecast(), log, store, checks_tables=True)
        self._fetched = fetched
        self._lineage: Lineage | None = None
        self._manifests: dict[Marker, Manifest] = {}
        self._deltas: dict[DeltaName, Delta] = {}
        self._tables: dict[Marker, list[TableFile]] = {}
        """The table files of each snapshot, by levels."""
        self._replayed: set[Marker] = set()
        """Deltas that were applied one by one, which checks each of them."""
        self._begin, self._end = b"", b""
        self._left: dict[str, ManifestFile] = {}
        """The snapshot's files that are not fetched, by name."""

    def restore_range(self, commit: Marker, wanted: Range, folder: Path) -> _Restored:
        """Restore a range of ``commit`` into the empty ``folder``. Raises as ``restore`` does."""
        self._begin, self._end = wanted
        self._left = {}
        restored = self.restore(commit, folder, set(), lambda _commit, _folder: None)
        self._lineage = restored.lineage
        return _Restored(restored.database, None if not self._left else wanted)

    def _read_lineage(self, commit: Marker) -> Lineage:
        """Return the lineage of the last restored range: fetched objects are kept."""
        return self._lineage or super()._read_lineage(commit)

    def _manifest(self, base: Marker) -> Manifest:
        if base not in self._manifests:
            self._manifests[base] = super()._manifest(base)
        return self._manifests[base]

    def _place_file(self, file: ManifestFile, folder: Path) -> int:
        if file.object_name is None:
            return super()._place_file(file, folder)
        path, kept = folder / file.name, self._path_of(file)
        if kept.exists():
            os.link(kept, path)
            return 0
        size_bytes = super()._place_file(file, folder)
        os.link(path, kept)
        return size_bytes

    def _path_of(self, file: ManifestFile) -> Path:
        """Return where a table file stays once it is fetched."""
        return self._fetched / f"{Path(str(file.object_name)).stem}-{file.name}"

    def _delta(self, name: DeltaName, size_bytes: int, folder: Path) -> Delta:
        if name not in self._deltas:
            self._deltas[name] = super()._delta(name, size_bytes, self._fetched / str(name))
        kept = self._deltas[name]
        folder.mkdir(mode=0o700)
        for file in kept.files:
            os.link(file, folder / file.name)
        return Delta(kept.store, [folder / file.name for file in kept.files], kept.size_bytes)

    def _choose_files(self, manifest: Manifest) -> Sequence[ManifestFile]:
        """Return the files to fetch. Files without keys are RocksDB's own and always needed.

        The database of a snapshot that lacks no file serves all later ranges. Small files are therefore fetched too,
        and once half of the bytes are here, all files are.
        """
        self._left = {file.name: file for file in manifest.files if self._is_outside(file)}
        here_bytes = sum(file.size_bytes for file in manifest.objects().values() if self._path_of(file).exists())
        lacking_bytes = sum(file.size_bytes for file in self._left.values() if not self._path_of(file).exists())
        if lacking_bytes <= here_bytes:
            self._left = {}
        return [file for file in manifest.files if file.name not in self._left]

    def _is_outside(self, file: ManifestFile) -> bool:
        if file.first_key is None or file.last_key is None or file.size_bytes <= SMALL_BYTES:
            return False
        return file.last_key < self._begin or file.first_key >= self._end

    def _open(self, base: Marker, kind: str, folder: Path) -> Database:
        """Open the snapshot if no file is left out, else a new database with the rows of the range."""
        if kind != SNAPSHOT:
            self._left = {}  # from a snapshot that was not usable
        if not self._left:
            return super()._open(base, kind, folder)
        snapshot = folder.rename(folder.with_name("snapshot"))
        database = None
        try:
            self._complete(base, snapshot)
            if not self._left:
                return super()._open(base, kind, snapshot.rename(folder))
            database = Database(folder, self._tuning)
            table = snapshot / "range"
            self._copy_range(base, snapshot, table)
            database.ingest([table])
        except CkptError as problem:
            if database is not None:
                database.close()
            raise UnusableBaseError(f"the {kind} of {base} cannot be read: {problem}") from problem
        return database

    def _replay(self, database: Database, deltas: list[Delta], base: Marker, kind: str) -> None:
        if deltas and self._replayed.issuperset(delta.store.marker for delta in deltas):
            files = [file for delta in deltas for file in delta.files]
            deltas = [Delta(deltas[-1].store, files, sum(delta.size_bytes for delta in deltas))]
        super()._replay(database, deltas, base, kind)
        self._replayed.update(delta.store.marker for delta in deltas)

    def _complete(self, base: Marker, snapshot: Path) -> None:
        """Fetch the other files that a scan opens: all of level 0, and in each other level the file where it begins."""
        if base not in self._tables:
            partial = Database(snapshot, self._tuning, read_only=True, may_lack_tables=True)
            try:
                self._tables[base] = partial.table_files()
            finally:
                partial.close()
        tables = self._tables[base]
        opened = [table for table in tables if table.level == 0]
        for level in {table.level for table in tables if table.level}:
            from_begin = [table for table in tables if table.level == level and table.last_key >= self._begin]
            opened += [min(from_begin, key=lambda table: table.first_key)] if from_begin else []
        lacking = [self._left.pop(table.name) for table in opened if table.name in self._left]
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


class _Restored(NamedTuple):
    """An open database, and the range whose rows it has; None if it has all rows."""

    database: Database
    covered: Range | None


class RangeReader:
    """Reads ranges of the keys of one version of a store. For one caller at a time."""

    def __init__(
        self, place: BlobPlace, commit: Marker, tuning: Tuning, pool: Executor, store: str, folder: Path
    ) -> None:
        """Read ``commit`` from ``place`` with the threads of ``pool``. The empty ``folder`` gets the fetched files."""
        self._commit = commit
        self._folder = folder
        (folder / "fetched").mkdir(mode=0o700)
        self._restorer = _RangeRestorer(place, tuning, pool, store, folder / "fetched")
        self._restored: _Restored | None = None

    def open(self, wanted: Range) -> Database:
        """Return a database with the rows of a range, and perhaps others. The next call may close it.

        It returns the last one if that has the range, too. Otherwise, only missing files are fetched. Raises
        NotFoundError, InvalidInputError, FormatError, StorageError as a restore does.
        """
        if self._restored is None or self._restored.covered not in (None, wanted):
            self.close()
            (self._folder / "range").mkdir(mode=0o700)
            self._restored = self._restorer.restore_range(self._commit, wanted, self._folder / "range")
        return self._restored.database

    def close(self) -> None:
        """Close the database and delete its folder. May be called twice."""
        restored, self._restored = self._restored, None
        if restored is not None:
            restored.database.close()
        shutil.rmtree(self._folder / "range", ignore_errors=True)
