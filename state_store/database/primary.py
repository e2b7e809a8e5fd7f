"""A database and its folder, for its only writer."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import rocksdict

from pyspark_ckpt.state_store.database.failures import failures
from pyspark_ckpt.state_store.database.tables import TableCount, TableFile, table_files_of
from pyspark_ckpt.state_store.database.tuning import Tuning, open_database
from pyspark_ckpt.state_store.errors import StorageError
from pyspark_ckpt.state_store.format.keys import MARKER_KEY, Marker

LINK_ATTEMPTS = 5
CONFIG_NAME = "rocksdict-config.json"


class Database:
    """One open RocksDB primary: the only writer of its folder."""

    def __init__(self, folder: Path, tuning: Tuning, *, read_only: bool = False, may_lack_tables: bool = False) -> None:
        """Open ``folder``, creating it if it is not there; read-only changes no file. Raises StorageError.

        One that ``may_lack_tables`` opens without some of its table files; a read that needs one raises StorageError.
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
        """Apply sorted table files in order, as one atomic step; the files are moved into the database.

        A later file wins over an earlier one. Files must come from a table file writer: those of another
        database are refused. Raises StorageError.
        """
        how = rocksdict.IngestExternalFileOptions()
        how.set_move_files(True)
        with failures(f"ingest {len(files)} files into {self.folder}"):
            self._open.ingest_external_file([str(file) for file in files], how)
        self._tuning.lower_compaction()

    def get(self, key: bytes) -> bytes | None:
        """The value of a row, None if there is none. Raises StorageError, FormatError."""
        with failures(f"read the database {self.folder}"):
            value = self._open.get(key)
        return None if value is None else bytes(value)

    def marker(self) -> Marker | None:
        """Which commit the database holds; None for an empty one."""
        value = self.get(MARKER_KEY)
        return None if value is None else Marker.decode(value)

    def checkpoint(self, folder: Path) -> None:
        """Make the new ``folder`` a copy of the database by hard links, in well under a millisecond of work.

        Nothing is fsynced: a local copy need not survive a crash of the machine. The caller makes sure that
        nothing is ingested meanwhile; compaction may go on. Raises StorageError.
        """
        with failures(f"make a checkpoint of {self.folder} in {folder}"):
            for _ in range(LINK_ATTEMPTS):
                if _link_database(self.folder, folder):
                    return
                shutil.rmtree(folder)
            rocksdict.Checkpoint(self._open).create_checkpoint(str(folder))

    def table_files(self) -> list[TableFile]:
        """Every SST of the database."""
        with failures(f"list the files of {self.folder}"):
            return table_files_of(self._open)

    def table_count(self) -> TableCount:
        """How many SSTs the database has."""
        return TableCount.of(self.table_files())

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """All rows in key order, the marker row included; for tests and tools, not for the commit path.

        Raises StorageError, FormatError.
        """
        yield from self._rows_of(self._iterator(None), b"")

    def hide(self, *ranges: tuple[bytes, bytes]) -> None:
        """Remove the rows from one key up to another, of each range, by a mark of some bytes; for offline work.

        The rows leave the files when these are compacted. All marks are in one file. Raises StorageError.
        """
        unlogged = rocksdict.WriteOptions()
        unlogged.disable_wal = True  # type: ignore[method-assign,assignment]  # the stub has a method of this name
        with failures(f"delete rows of {self.folder}"):
            for begin, end in ranges:
                self._open.delete_range(begin, end, write_opt=unlogged)
            self._open.flush()

    def drop(self, begin: bytes, end: bytes) -> None:
        """Take what is hidden between two keys out of the files; for offline work. Raises StorageError."""
        with failures(f"compact {self.folder}"):
            self._open.compact_range(begin, end)

    def rows_in(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows whose keys are from ``begin`` up to ``end`` (exclusive), in order. Raises StorageError, FormatError."""
        yield from self._rows_of(self._iterator(end), begin)

    def count(self, begin: bytes, end: bytes) -> int:
        """How many rows there are from key ``begin`` up to ``end``. Raises StorageError, FormatError."""
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
        """One for all rows whose keys are less than ``end``."""
        within = rocksdict.ReadOptions()
        within.set_total_order_seek(True)
        if end is not None:
            within.set_iterate_upper_bound(end)
        return self._open.iter(within)

    def _rows_of(self, rows: rocksdict.RdictIter, begin: bytes) -> Iterator[tuple[bytes, bytes]]:
        with failures(f"read the database {self.folder}"):
            rows.seek(begin)
            while (key := rows.key()) is not None:
                yield key, rows.value()
                rows.next()
            rows.status()  # an iterator that fails says only here that it has not come to the end

    def compact(self) -> None:
        """Merge everything into the fewest files; for offline work and tests."""
        with failures(f"compact {self.folder}"):
            self._open.compact_range(None, None)

    def close(self) -> None:
        """Stop background work and release the folder. May be called twice.

        A disk that fails now is no error: with an empty memtable nothing is written that counts.
        """
        with self._closing:
            database, self._db = self._db, None
            if database is not None:
                with suppress(Exception):  # the binding raises no narrower one, and has let go of the folder
                    database.close()


def drop_unreferenced(folder: Path, tuning: Tuning) -> None:
    """Unlink table files that the database of ``folder`` does not refer to, before somebody writes to it.

    A checkpoint may hold links to files that a compaction was just writing. RocksDB may give their numbers
    to new files, and must then not find the old ones, which another folder shares.
    """
    database = Database(folder, tuning, read_only=True)
    try:
        known = {table.name for table in database.table_files()}
    finally:
        database.close()
    keep_only(folder, known)


def keep_only(folder: Path, tables: Collection[str]) -> None:
    """Unlink all table files of a folder but some, by their names."""
    for path in folder.glob("*.sst"):
        if path.name not in tables:
            path.unlink()


def _link_database(source: Path, target: Path) -> bool:
    """Link a database that may be compacting into ``target``; False if its manifest changed meanwhile.

    The manifest is copied first and all table files are linked after it. RocksDB deletes a file only after
    a manifest record without it: with the manifest as it was, every file that it refers to is linked.
    """
    target.mkdir(mode=0o700)
    manifest = source / (source / "CURRENT").read_text(encoding="ascii").strip()
    before = manifest.stat().st_size
    shutil.copyfile(manifest, target / manifest.name)
    (target / "CURRENT").write_text(manifest.name + "\n", encoding="ascii")
    for path in source.iterdir():
        try:
            if path.suffix == ".sst":
                os.link(path, target / path.name)
            elif path.name.startswith("OPTIONS-") or path.name == CONFIG_NAME:
                shutil.copyfile(path, target / path.name)
        except FileNotFoundError:  # an obsolete file that compaction has just removed
            continue
    now = (source / "CURRENT").read_text(encoding="ascii").strip()
    return (
        (now, manifest.stat().st_size)
        == (manifest.name, before)
        == (
            manifest.name,
            (target / manifest.name).stat().st_size,
        )
    )
