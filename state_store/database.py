"""RocksDB as this engine uses it. The only module that imports rocksdict.

Databases are fed by ingested files alone: the memtable is always empty and there is no write-ahead log to
replay, so a checkpoint is pure hard links and a reader in another process needs only the manifest. The
table format is pinned to what Spark's own rocksdbjni reads, whatever a newer rocksdict would write.
"""

from __future__ import annotations

import copy
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import rocksdict

from pyspark_ckpt.state_store.errors import FormatError, StorageError
from pyspark_ckpt.state_store.keys import MARKER_KEY, Marker

TABLE_FORMAT_VERSION = 5
BLOOM_BITS_PER_KEY = 10
PREFIX_BYTES = 6
READAHEAD_BYTES = 2 << 20
LEVEL0_COMPACTION_FILES = 8
COMPACTION_THREADS = 2
LINK_ATTEMPTS = 5
CONFIG_NAME = "rocksdict-config.json"

_MIB = 1 << 20
_COMPRESSION = {
    "lz4": rocksdict.DBCompressionType.lz4,
    "zstd": rocksdict.DBCompressionType.zstd,
    "none": rocksdict.DBCompressionType.none,
}


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


class Tuning:
    """RocksDB settings shared by all databases of the process: one block cache, one pool of threads."""

    def __init__(self, cache_bytes: int, compression: str = "lz4") -> None:
        """Make a cache of ``cache_bytes`` for all databases together."""
        self.cache = rocksdict.Cache(cache_bytes)
        self.compression = compression
        self._env = rocksdict.Env()
        self._env.set_low_priority_background_threads(COMPACTION_THREADS)
        self._env.set_high_priority_background_threads(1)

    def using(self, compression: str) -> Tuning:
        """Return these settings, cache and threads included, with another compression."""
        other = copy.copy(self)
        other.compression = compression
        return other

    def used_bytes(self) -> int:
        """Memory the block cache holds now, index and filter blocks included."""
        return self.cache.get_usage()

    def options(self) -> rocksdict.Options:
        """Options of one database or one table file writer."""
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_env(self._env)
        options.set_block_based_table_factory(self._tables())
        options.set_compression_type(_COMPRESSION[self.compression]())
        # Bloom filters answer for `state · hash`, too: a scan of one key's rows passes over most table files.
        options.set_prefix_extractor(rocksdict.SliceTransform.create_fixed_prefix(PREFIX_BYTES))
        # Ingested files only: a memtable is never filled, so it may be as small as RocksDB allows.
        options.set_write_buffer_size(64 << 10)
        options.set_max_write_buffer_number(2)
        options.set_max_background_jobs(COMPACTION_THREADS)
        options.set_level_zero_file_num_compaction_trigger(LEVEL0_COMPACTION_FILES)
        options.set_level_zero_slowdown_writes_trigger(1 << 20)
        options.set_level_zero_stop_writes_trigger(1 << 20)
        options.set_soft_pending_compaction_bytes_limit(0)
        options.set_hard_pending_compaction_bytes_limit(0)
        # Smaller files than RocksDB's default: an incremental snapshot uploads whole files.
        options.set_target_file_size_base(16 * _MIB)
        # ... and larger ones further down, so that a snapshot of much state has hundreds of them and not thousands.
        options.set_target_file_size_multiplier(2)
        options.set_max_bytes_for_level_base(64 * _MIB)
        options.set_level_compaction_dynamic_level_bytes(True)
        options.set_max_open_files(-1)
        options.set_max_file_opening_threads(2)
        options.set_max_manifest_file_size(_MIB)
        options.set_keep_log_file_num(1)
        options.set_max_log_file_size(_MIB)
        options.set_stats_dump_period_sec(0)
        options.set_stats_persist_period_sec(0)
        options.set_skip_stats_update_on_db_open(True)
        return options

    def reader_options(self) -> rocksdict.Options:
        """Options of a reader.

        Table files without compression are read where the system has mapped them, indexes and filters as well:
        nothing is copied, and no cache is asked. For a random row that takes half the time of a compressed one.
        """
        options = self.options()
        if self.compression == "none":
            options.set_allow_mmap_reads(True)
            tables = self._tables()
            tables.set_cache_index_and_filter_blocks(False)
            options.set_block_based_table_factory(tables)
        return options

    def _tables(self) -> rocksdict.BlockBasedOptions:
        tables = rocksdict.BlockBasedOptions()
        tables.set_format_version(TABLE_FORMAT_VERSION)
        tables.set_block_size(4 << 10)
        tables.set_bloom_filter(BLOOM_BITS_PER_KEY, False)
        tables.set_block_cache(self.cache)
        tables.set_cache_index_and_filter_blocks(True)
        return tables


class Database:
    """One open RocksDB primary: the only writer of its folder."""

    def __init__(self, folder: Path, tuning: Tuning, *, read_only: bool = False, may_lack_tables: bool = False) -> None:
        """Open ``folder``, creating it if it is not there; read-only changes no file. Raises StorageError.

        One that ``may_lack_tables`` opens without some of its table files; a read that needs one raises StorageError.
        """
        self.folder = folder
        options = tuning.options()
        options.set_paranoid_checks(not may_lack_tables)
        self._closing = threading.Lock()
        self._bounds: list[rocksdict.ReadOptions] = []
        mode = rocksdict.AccessType.read_only(False) if read_only else rocksdict.AccessType.read_write()
        with failures(f"open the database {folder}"):
            self._db: rocksdict.Rdict | None = rocksdict.Rdict(str(folder), options, access_type=mode)

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

    def marker(self) -> Marker | None:
        """Which commit the database holds; None for an empty one."""
        with failures(f"read the version marker of {self.folder}"):
            value = self._open.get(MARKER_KEY)
        return None if value is None else Marker.decode(bytes(value))

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
            return [
                TableFile(
                    name=str(file["name"]).lstrip("/"),
                    size_bytes=int(file["size"]),
                    first_key=bytes(file["start_key"] or b""),
                    last_key=bytes(file["end_key"] or b""),
                    rows=int(file["num_entries"]),
                    level=int(file["level"]),
                )
                for file in self._open.live_files()
            ]

    def table_count(self) -> TableCount:
        """How many SSTs the database has."""
        tables = self.table_files()
        return TableCount(len(tables), sum(table.size_bytes for table in tables))

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """All rows in key order, the marker row included; for tests and tools, not for the commit path."""
        everywhere = rocksdict.ReadOptions()
        everywhere.set_total_order_seek(True)
        for key, value in self._open.items(read_opt=everywhere):
            yield bytes(key), bytes(value)  # type: ignore[arg-type]  # raw mode: keys are bytes

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows from key ``begin`` up to ``end`` in key order, past the block cache. For offline work."""
        read = rocksdict.ReadOptions()
        read.set_total_order_seek(True)
        read.fill_cache(False)  # type: ignore[call-arg]  # the stub forgets it
        read.set_readahead_size(READAHEAD_BYTES)
        read.set_iterate_upper_bound(end)
        self._bounds.append(read)  # the binding's iterator has a pointer to the bound, and not the bound
        return cast("Iterator[tuple[bytes, bytes]]", self._open.items(from_key=begin, read_opt=read))

    def hide(self, begin: bytes, end: bytes) -> None:
        """Remove the rows from key ``begin`` up to ``end`` by a mark of some bytes; for offline work.

        The rows leave the files when these are compacted. Raises StorageError.
        """
        unlogged = rocksdict.WriteOptions()
        unlogged.disable_wal = True  # type: ignore[method-assign,assignment]  # the stub has a method of this name
        with failures(f"delete rows of {self.folder}"):
            self._open.delete_range(begin, end, write_opt=unlogged)
            self._open.flush()

    def drop(self, begin: bytes, end: bytes) -> None:
        """Take what is hidden between two keys out of the files; for offline work. Raises StorageError."""
        with failures(f"compact {self.folder}"):
            self._open.compact_range(begin, end)

    def rows_in(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows whose keys are from ``begin`` up to ``end`` (exclusive), in order. Raises StorageError, FormatError."""
        within = rocksdict.ReadOptions()
        within.set_total_order_seek(True)
        within.set_iterate_upper_bound(end)
        with failures(f"read the database {self.folder}"):
            rows = self._open.iter(within)
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


class Reader:
    """A view of a database that another process owns: of a live one as a secondary, else read-only."""

    def __init__(self, folder: Path, tuning: Tuning, scratch: Path | None) -> None:
        """Open ``folder``: as a secondary with the new folder ``scratch``, else read-only. Raises StorageError."""
        self._scratch = scratch
        if scratch is not None:
            scratch.mkdir(mode=0o700, parents=True)
            mode = rocksdict.AccessType.secondary(str(scratch))
        else:
            mode = rocksdict.AccessType.read_only(False)
        self._what = f"read the database {folder}"
        try:
            with failures(self._what):
                self._db = rocksdict.Rdict(str(folder), tuning.reader_options(), access_type=mode)
        except BaseException:
            self._remove_scratch()
            raise

    def catch_up(self) -> None:
        """See what the owner has written until now. Raises StorageError."""
        if self._scratch is not None:
            with failures(self._what):
                self._db.try_catch_up_with_primary()

    def marker(self) -> Marker | None:
        """Which commit the view shows."""
        with failures(self._what):
            value = self._db.get(MARKER_KEY)
        return None if value is None else Marker.decode(bytes(value))

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Values of ``keys``, None where there is none; fastest for sorted keys. Raises StorageError."""
        with failures(self._what):
            return self._db.get(keys)  # type: ignore[return-value,arg-type]  # raw mode: keys and values are bytes

    def cursor(self) -> Cursor:
        """A position in the rows, to scan those whose keys begin with one state and hash, or a range of them."""
        everywhere = rocksdict.ReadOptions()
        everywhere.set_total_order_seek(True)
        with failures(self._what):
            return Cursor(self._db.iter(everywhere))

    def close(self) -> None:
        """Release the view."""
        self._db.close()
        self._remove_scratch()

    def _remove_scratch(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


class Cursor:
    """A position in the rows of a database, in key order.

    ``key`` is None behind the last row. There is no row between ``left`` and ``key``.
    """

    def __init__(self, rows: rocksdict.RdictIter) -> None:
        """Stand nowhere: ``seek`` first."""
        self._rows = rows
        self.key: bytes | None = None
        self.left = b""

    def seek(self, key: bytes) -> None:
        """Go to the first row whose key is ``key`` or greater."""
        self._rows.seek(key)
        self.left = key
        self.key = self._rows.key()

    def value(self) -> bytes:
        """The value of the row at ``key``."""
        value: bytes = self._rows.value()
        return value

    def next(self) -> None:
        """Go to the next row."""
        self.left = self.key or self.left
        self._rows.next()
        self.key = self._rows.key()


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
    for path in folder.glob("*.sst"):
        if path.name not in known:
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


class TableWriter:
    """Writes one table file, whose rows are given in the order of their keys."""

    def __init__(self, path: Path, tuning: Tuning) -> None:
        """Begin the new file ``path``. Raises StorageError."""
        self._what = f"write the table file {path}"
        with failures(self._what):
            self._writer = rocksdict.SstFileWriter(tuning.options())
            self._writer.open(str(path))
        self.put = self._writer.__setitem__
        """Write a row; within ``failures``, for nothing stands between the caller and the binding."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the file so far."""
        return int(self._writer.file_size())

    def finish(self) -> None:
        """Make the file complete. Raises StorageError."""
        with failures(self._what):
            self._writer.finish()


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


class failures:  # noqa: N801 - used as a function
    """Turn what the binding raises while it is to do ``what`` into the error tree."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if problem is None or isinstance(problem, (StorageError, FormatError)) or not isinstance(problem, Exception):
            return
        if "Corruption" in str(problem):
            raise FormatError(f"Could not {self._what}: {problem}") from problem
        raise StorageError(f"Could not {self._what}: {problem}") from problem
