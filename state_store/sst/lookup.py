"""Looks up many keys at once: in the newest table files, while these have many of the keys.

RocksDB takes a microsecond for each key. When a table file is read as a whole, each row takes a tenth of that. A batch
often asks for the keys that an earlier batch has written, and each batch writes one file. ``scan`` says which file is
newer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pyspark_ckpt.state_store.arrays.cells import Cells
from pyspark_ckpt.state_store.arrays.order import Bools, are_equal, search_sorted
from pyspark_ckpt.state_store.arrays.packed import WORD, Integers, Packed, concatenate
from pyspark_ckpt.state_store.database import Reader, TableFile
from pyspark_ckpt.state_store.database.column_names import MIN_KEYS, ROWS_A_KEY
from pyspark_ckpt.state_store.errors import InternalError
from pyspark_ckpt.state_store.sst.blocks import DELETION
from pyspark_ckpt.state_store.sst.column_file import FEW_TIES, MAX_KEY_BYTES, ColumnFile, OpenColumnFiles
from pyspark_ckpt.state_store.sst.scan import Portion
from pyspark_ckpt.state_store.sst.table import BLOCK_BYTES, SortedTable

ROWS_A_KEY_BESIDE = 8
"""The maximum rows for each remaining key at which a file is read, if most table files have column files.

Otherwise the limit is ROWS_A_KEY, and the next file is read only if at least one row in ROWS_A_KEY was asked for."""
BYTES_A_KEY = 512
"""The maximum bytes for each remaining key at which a file is read."""
MAX_BYTES = 32 << 20
"""The maximum memory for one part of a file. Keys in a part that needs more are left to RocksDB."""
MAX_BESIDE = 8
"""Values found are copied if the array that they keep alive has more than this many times their bytes."""


def look_up(reader: Reader, keys: Packed, columns: OpenColumnFiles | None = None) -> Cells:
    """Return the cells of a database for keys that rise; keys may repeat.

    ``columns``: the column files of its table files. Raises StorageError, FormatError, InternalError.
    """
    search = _Search(reader, keys, columns)
    if len(keys) >= MIN_KEYS and int(keys.size.max()) <= MAX_KEY_BYTES:
        search.in_files()
    return search.answer()


class _Search:
    """The known values of some keys so far."""

    def __init__(self, reader: Reader, keys: Packed, columns: OpenColumnFiles | None) -> None:
        self._reader, self._keys = reader, keys
        self._columns = columns
        self._places: list[Integers] = []
        self._values: list[Packed] = []
        self._is_known = np.zeros(len(keys), np.bool_)
        self._left = np.arange(len(keys))
        """Positions of keys that are in none of the files searched so far: only these are sought in older files."""

    def in_files(self) -> None:
        """Search files, newest first, while that pays."""
        files = self._reader.table_files()
        if self._columns is not None and not self._columns.have_most_of(files):
            self._columns = None
        for file in files:
            if len(self._left) < MIN_KEYS:
                return
            asked = self._keys.take(self._left)
            begin, end = bisect_left(asked, file.first_key), bisect_left(asked, file.last_key + b"\0")
            if begin == end:
                continue
            columns = None if self._columns is None else self._columns.of(file.name)
            if columns is not None:
                self._in_columns(columns, begin, end)
            elif not self._in_file(file, begin, end):
                return

    def answer(self) -> Cells:
        """Return the cells of all keys. RocksDB is asked for those not yet known."""
        rest = np.flatnonzero(~self._is_known)
        if len(rest) == len(self._keys):
            return Cells.of(self._reader.get_many(self._keys.strings()))
        found = Cells.of(self._reader.get_many(self._keys.take(rest).strings()))
        self._add(rest, found.values, found.there)
        return Cells.present(concatenate(self._values)).among(len(self._keys), np.concatenate(self._places))

    def _add(self, places: Integers, values: Packed, there: Bools) -> None:
        """Keep the values of keys: nothing where ``there`` is false."""
        self._is_known[places] = True
        self._places.append(places[there])
        self._values.append(values.take(there))

    def _in_columns(self, columns: ColumnFile, begin: int, end: int) -> None:
        """Search a column file for remaining keys."""
        is_absent = np.ones(len(self._left), np.bool_)
        is_absent[begin:end] = False  # RocksDB is asked for keys within the bounds of no part
        asked = self._left[begin:end]
        for some in columns.matches(self._keys.take(asked)):
            is_absent[begin + some.which.start : begin + some.which.stop] = ~some.is_near
            self._keep(asked[some.found], some.values, some.kinds, str(columns.path))
        self._left = self._left[is_absent]

    def _in_file(self, file: TableFile, begin: int, end: int) -> bool:
        """Search a table file for remaining keys. Returns whether older files are worth searching."""
        try:
            table = SortedTable(self._reader.folder / file.name, (file.first_key, file.last_key))
        except FileNotFoundError:  # compacted away, but RocksDB still has it open
            return False
        try:
            return not table.hidden and self._in_table(table, begin, end)
        finally:
            table.close()

    def _in_table(self, table: SortedTable, begin: int, end: int) -> bool:
        first, behind = self._keys[self._left[begin]], self._keys[self._left[end - 1]] + b"\0"
        span, count = table.span(first, behind), end - begin
        rows = table.rows * len(span) / max(1, len(table.blocks))
        rows_a_key = ROWS_A_KEY if self._columns is None else ROWS_A_KEY_BESIDE
        if rows > rows_a_key * count or span.stored_bytes > BYTES_A_KEY * count + BLOCK_BYTES:
            return False
        is_absent = np.ones(len(self._left), np.bool_)
        read = found = 0
        asked = self._left[begin:end]
        for portion, some in _parts(table, self._keys.take(asked), first, behind):
            entries = portion.entries(MAX_BYTES)
            within = slice(begin + some.start, begin + some.stop)
            is_absent[within] = entries is not None
            if entries is not None and len(entries):
                at, is_there = _positions(self._keys.take(asked[some]), entries.keys)
                is_absent[within] = at < 0
                there = entries.take(at[is_there])
                values = there.values
                if len(values.data) > MAX_BESIDE * int(values.size.sum()):
                    values = concatenate([values])
                self._keep(asked[some][is_there], values, there.kinds, portion.what)
                read, found = read + len(entries), found + int(is_there.sum())
        self._left = self._left[is_absent]
        return self._columns is not None or read < MIN_KEYS or found * ROWS_A_KEY >= read

    def _keep(self, places: Integers, values: Packed, kinds: npt.NDArray[np.uint8], what: str) -> None:
        """Keep the values of keys in the file ``what``. One of them is compared with the database."""
        if not len(places):
            return
        middle = len(places) // 2
        key, value = self._keys[places[middle]], values[middle] if kinds[middle] != DELETION else None
        if self._reader.get_many([key]) != [value]:
            raise InternalError(f"The row of the key {key.hex()} in {what} differs from the database's.")
        self._add(places, values, kinds != DELETION)


def _parts(table: SortedTable, keys: Packed, begin: bytes, end: bytes) -> Iterator[tuple[Portion, slice]]:
    """Yield parts of a table, of bounded size, each with the slice of the keys that fall into it."""
    cuts = [begin, *(cut for cut in table.cuts if begin < cut < end), end]
    first = 0
    for low, high in pairwise(cuts):
        behind = bisect_left(keys, high, lo=first)
        if behind > first and table.span(low, high):
            yield Portion(low, high, ((table, 0),), str(table.path)), slice(first, behind)
        first = behind


def _positions(asked: Packed, stored: Packed) -> tuple[Integers, Bools]:
    """Return the position of each key among stored ones that rise (the first of equal ones), and whether it is there.

    The position is -1 for a key that is known not to be there. A key that has a position but is not there begins like a
    stored key: RocksDB must be asked for it, but no older file.
    """
    found, sought = stored.words(0), asked.words(0)
    words = -(-int(asked.size.max()) // WORD)
    for number in range(1, words):
        is_new = np.concatenate(([True], found[1:] != found[:-1]))
        if (len(found) - int(is_new.sum())) * FEW_TIES <= len(found):
            break
        # Prefixes become longer by a word, and each distinct one gets a new number.
        groups, more = np.cumsum(is_new), stored.words(number)
        distinct, codes = np.unique(more, return_inverse=True)
        at, is_there = search_sorted(found, sought)
        code, is_known = search_sorted(distinct, asked.words(number))
        found = (groups * len(distinct) + codes).astype(np.uint64)
        sought = np.where(is_there & is_known, groups[at] * len(distinct) + code, 0).astype(np.uint64)
    at, is_near = search_sorted(found, sought)
    return np.where(is_near, at, -1), is_near & are_equal(asked, stored.take(at))
