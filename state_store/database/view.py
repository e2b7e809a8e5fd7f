"""Reads a database that another process owns."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import rocksdict

from pyspark_ckpt.state_store.database.failures import failures
from pyspark_ckpt.state_store.database.tables import TableFile, list_table_files
from pyspark_ckpt.state_store.database.tuning import Tuning, open_database
from pyspark_ckpt.state_store.format.keys import MARKER_KEY, Marker

PORTION_ROWS = 1024


class Reader:
    """A view of a database that another process owns: a secondary, or read-only as of the moment it is opened."""

    def __init__(self, folder: Path, tuning: Tuning, scratch: Path | None) -> None:
        """Open ``folder``: as a secondary with the new folder ``scratch``, else read-only. Raises StorageError."""
        self.folder = folder
        self._table_files: list[TableFile] | None = None
        self._scratch = scratch
        if scratch is not None:
            scratch.mkdir(mode=0o700, parents=True)
            mode = rocksdict.AccessType.secondary(str(scratch))
        else:
            mode = rocksdict.AccessType.read_only(False)
        self._what = f"read the database {folder}"
        try:
            with failures(self._what):
                self._db = open_database(folder, tuning.reader_options(), mode)
        except BaseException:
            self._remove_scratch()
            raise

    @property
    def follows(self) -> bool:
        """Return whether the view can be brought up to the owner's present state."""
        return self._scratch is not None

    def catch_up(self) -> None:
        """Bring a view that follows up to the owner's present state. Raises StorageError."""
        if self.follows:
            self._table_files = None
            with failures(self._what):
                self._db.try_catch_up_with_primary()

    def marker(self) -> Marker | None:
        """Return the commit that the view shows; None for an empty database."""
        with failures(self._what):
            value = self._db.get(MARKER_KEY)
        return None if value is None else Marker.decode(bytes(value))

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of ``keys``, None for a missing key. Sorted keys are fastest. Raises StorageError."""
        with failures(self._what):
            return self._db.get(keys)  # type: ignore[return-value,arg-type]  # raw mode: keys and values are bytes

    def table_files(self) -> list[TableFile]:
        """Return every SST of the view, as ``list_table_files`` does. Their ``rows`` are not counted.

        The owner may have deleted files since then. Raises StorageError.
        """
        if self._table_files is None:
            with failures(self._what):
                self._table_files = list_table_files(self._db)
        return self._table_files

    def cursor(self) -> Cursor:
        """Return a cursor, to scan the rows whose keys begin with one state and hash, or a range of keys."""
        everywhere = rocksdict.ReadOptions()
        everywhere.set_total_order_seek(True)
        with failures(self._what):
            return Cursor(self._db.iter(everywhere), self._what)

    def portions(self, begin: bytes, end: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield the rows from key ``begin`` up to ``end`` (exclusive), in order, at most PORTION_ROWS at a time.

        Raises StorageError, FormatError.
        """
        within = rocksdict.ReadOptions()
        within.set_total_order_seek(True)
        within.set_iterate_upper_bound(end)
        with failures(self._what):
            while begin < end:
                rows = self._db.items(from_key=begin, read_opt=within)
                while some := list(islice(rows, PORTION_ROWS)):
                    yield some  # type: ignore[misc]  # raw mode: keys and values are bytes
                    begin = some[-1][0] + b"\0"  # type: ignore[operator,assignment]
                # The iterator ends in the same way when it fails.
                behind = self._db.iter(within)
                behind.seek(begin)
                if not behind.valid():
                    behind.status()
                    return

    def close(self) -> None:
        """Release the view."""
        self._db.close()
        self._remove_scratch()

    def _remove_scratch(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


class Cursor:
    """A position in the rows of a database, in key order.

    ``key`` is None after the last row. There is no row between ``left`` and ``key``.
    """

    def __init__(self, rows: rocksdict.RdictIter, what: str) -> None:
        """Make a cursor without a position: call ``seek`` first. ``what``: the purpose, for errors."""
        self._rows = rows
        self._what = what
        self.key: bytes | None = None
        self.left = b""

    def seek(self, key: bytes) -> None:
        """Go to the first row whose key is ``key`` or greater. Raises StorageError, FormatError."""
        self._rows.seek(key)
        self.left = key
        self._arrive()

    def value(self) -> bytes:
        """Return the value of the row at ``key``."""
        value: bytes = self._rows.value()
        return value

    def next(self) -> None:
        """Go to the next row. Raises StorageError, FormatError."""
        self.left = self.key or self.left
        self._rows.next()
        self._arrive()

    def _arrive(self) -> None:
        """Read the iterator's position. A failed iterator looks like one at its end until its status is checked."""
        self.key = self._rows.key()
        if self.key is None:
            with failures(self._what):
                self._rows.status()
