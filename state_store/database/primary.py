"""A database and its folder, as its only writer sees them."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import rocksdict

from pyspark_ckpt.state_store.database.failures import failures
from pyspark_ckpt.state_store.database.tables import TableCount, TableFile, list_table_files
from pyspark_ckpt.state_store.database.tuning import Tuning, open_database
from pyspark_ckpt.state_store.errors import StorageError
from pyspark_ckpt.state_store.format.keys import MARKER_KEY, Marker

LINK_ATTEMPTS = 5


class Database:
    """One open RocksDB primary: the only writer of its folder."""

    def __init__(self, folder: Path, tuning: Tuning, *, read_only: bool = False, may_lack_tables: bool = False) -> None:
        """Open ``folder``, or create it; with ``read_only`` no file is changed. Raises StorageError.

        With ``may_lack_tables``, a database opens even if table files are missing, and a read that needs a missing one
        raises StorageError.
        """
        self.folder = folder
        self._tuning = tuning
        options = tuning.options()
        options.set_paranoid_checks(not may_lack_tables)
        self._closing = threading.Lock()
        mode = rocksdict.AccessType.read_only(False) if read_only else rocksdict.AccessType.read_write()
        with failures(f"open the database {folder}"):
            self._db: rocksdict.Rdict | None = open_database(folder, options, mode)

    @property
    def _open(self) -> rocksdict.Rdict:
        if self._db is None:
            raise StorageError(f"The database {self.folder} is closed.")
        return self._db

    def ingest(self, files: Sequence[Path]) -> None:
        """Apply sorted table files in order, as one atomic step. The files are moved into the database.

        A later file wins over an earlier one. The files must come from a table file writer: files of another database
        are rejected. Raises StorageError.
        """
        how = rocksdict.IngestExternalFileOptions()
        how.set_move_files(True)
        with failures(f"ingest {len(files)} files into {self.folder}"):
            self._open.ingest_external_file([str(file) for file in files], how)
        self._tuning.lower_compaction()

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a row, None if there is no such row. Raises StorageError, FormatError."""
        with failures(f"read the database {self.folder}"):
            value = self._open.get(key)
        return None if value is None else bytes(value)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of rows, None for each that is not there. Sorted keys are fastest. Raises as ``get``."""
        with failures(f"read the database {self.folder}"):
            return [None if value is None else bytes(value) for value in self._open.get(list(keys))]  # type: ignore[union-attr]  # raw mode

    def marker(self) -> Marker | None:
        """Return the commit that the database holds; None for an empty database."""
        value = self.get(MARKER_KEY)
        return None if value is None else Marker.decode(value)

    def checkpoint(self, folder: Path) -> None:
        """Make the new ``folder`` a copy of the database by hard links, in well under a millisecond of work.

        Nothing is fsynced: a local copy need not survive a crash of the machine. The caller ensures that nothing is
        ingested meanwhile; compaction may run. Raises StorageError.
        """
        with failures(f"make a checkpoint of {self.folder} in {folder}"):
            for _ in range(LINK_ATTEMPTS):
                if _link_database(self.folder, folder):
                    return
                shutil.rmtree(folder)
            rocksdict.Checkpoint(self._open).create_checkpoint(str(folder))

    def table_files(self) -> list[TableFile]:
        """Return every SST of the database, newer ones first."""
        with failures(f"list the files of {self.folder}"):
            return list_table_files(self._open)

    def table_count(self) -> TableCount:
        """Return how many SSTs the database has, and their size."""
        return TableCount.of(self.table_files())

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows in key order, the marker row included.

        This is for tests and tools, not for the commit path. Raises StorageError, FormatError.
        """
        yield from self._iterate(self._iterator(None), b"")

    def hide(self, *ranges: tuple[bytes, bytes]) -> None:
        """Delete the rows of each range, from one key up to another; for offline work.

        Each range takes one record of a few bytes, and all records are in one file. The rows leave the files when these
        are compacted. Raises StorageError.
        """
        unlogged = rocksdict.WriteOptions()
        unlogged.disable_wal = True  # type: ignore[method-assign,assignment]  # the stub has a method of this name
        with failures(f"delete rows of {self.folder}"):
            for begin, end in ranges:
                self._open.delete_range(begin, end, write_opt=unlogged)
            self._open.flush()

    def drop(self, begin: bytes, end: bytes) -> None:
        """Compact the files between two keys, which removes deleted rows; for offline work. Raises StorageError."""
        with failures(f"compact {self.folder}"):
            self._open.compact_range(begin, end)

    def rows_in(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows from key ``begin`` up to ``end`` (exclusive), in order. Raises StorageError, FormatError."""
        yield from self._iterate(self._iterator(end), begin)

    def count(self, begin: bytes, end: bytes) -> int:
        """Return the number of rows from key ``begin`` up to ``end``. Raises StorageError, FormatError."""
        count = 0
        with failures(f"read the database {self.folder}"):
            rows = self._iterator(end)
            rows.seek(begin)
            while rows.valid():
                count += 1
                rows.next()
            rows.status()
        return count

    def _iterator(self, end: bytes | None) -> rocksdict.RdictIter:
        """Return an iterator over all rows whose keys are less than ``end``; None: all rows."""
        within = rocksdict.ReadOptions()
        within.set_total_order_seek(True)
        if end is not None:
            within.set_iterate_upper_bound(end)
        return self._open.iter(within)

    def _iterate(self, rows: rocksdict.RdictIter, begin: bytes) -> Iterator[tuple[bytes, bytes]]:
        with failures(f"read the database {self.folder}"):
            rows.seek(begin)
            while (key := rows.key()) is not None:
                yield key, rows.value()
                rows.next()
            rows.status()  # only this tells a failed iterator from one at its end

    def compact(self) -> None:
        """Merge all files into as few as possible; for offline work and tests."""
        with failures(f"compact {self.folder}"):
            self._open.compact_range(None, None)

    def close(self) -> None:
        """Stop background work and release the folder. May be called twice.

        A failing disk causes no error here: the memtable is empty, so nothing that matters is written.
        """
        with self._closing:
            database, self._db = self._db, None
            if database is not None:
                with suppress(Exception):  # the binding raises nothing narrower, and has released the folder
                    database.close()


def drop_unreferenced(folder: Path, tuning: Tuning) -> None:
    """Unlink table files to which the database in ``folder`` does not refer. Call this before writing to it.

    A checkpoint may have links to files that a compaction was still writing. RocksDB may reuse their numbers, and must
    then not find the old files, which another folder shares.
    """
    database = Database(folder, tuning, read_only=True)
    try:
        known = {table.name for table in database.table_files()}
    finally:
        database.close()
    keep_only(folder, known)


def keep_only(folder: Path, tables: Collection[str]) -> None:
    """Unlink all table files of a folder except those named in ``tables``."""
    for path in folder.glob("*.sst"):
        if path.name not in tables:
            path.unlink()


def _link_database(source: Path, target: Path) -> bool:
    """Link a database, which may be compacting, into ``target``. Returns False if its manifest changed meanwhile.

    The manifest is copied first, and all table files are linked after it. RocksDB records the deletion of a file in the
    manifest first. If the manifest is unchanged, every file to which it refers is linked. Files of options are left
    out: whoever opens a database gives its options.
    """
    target.mkdir(mode=0o700)
    manifest = source / (source / "CURRENT").read_text(encoding="ascii").strip()
    before = manifest.stat().st_size
    shutil.copyfile(manifest, target / manifest.name)
    os.link(source / "CURRENT", target / "CURRENT")  # which is replaced, and never changed
    for path in source.iterdir():
        if path.suffix == ".sst":
            with suppress(FileNotFoundError):  # compaction has just removed an obsolete file
                os.link(path, target / path.name)
    now = (source / "CURRENT").read_text(encoding="ascii").strip()
    return (
        (now, manifest.stat().st_size)
        == (manifest.name, before)
        == (
            manifest.name,
            (target / manifest.name).stat().st_size,
        )
    )
