"""Reads all rows of a database in a range of keys from its table files, many rows at once.

RocksDB's rule for the value of a key is simple when no rows are only in memory: of all entries of a key, the one in the
newest file counts. A file is newer the nearer its level is to 0. Within level 0, RocksDB lists newer files first.

The scan goes through the keys in order, and has a file open only from its first key to its last. It reads the rows
between two keys as one portion, of bounded size, and halves a portion that is too large. Memory is therefore bounded,
whatever the size, number and content of the files.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from pathlib import Path

import numpy as np

from pyspark_ckpt.state_store.arrays.order import Bools, in_order
from pyspark_ckpt.state_store.arrays.packed import Integers, Packed
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.arrays.sums import sum_row_hashes
from pyspark_ckpt.state_store.database import Database, TableFile
from pyspark_ckpt.state_store.database.scratch import ScratchDatabase
from pyspark_ckpt.state_store.errors import FormatError, InternalError, StorageError
from pyspark_ckpt.state_store.sst.blocks import DELETION, Entries, parse_entries
from pyspark_ckpt.state_store.sst.table import BlockRange, SortedTable

MAX_BYTES = 64 << 20
"""Maximum memory for rows at once, as far as they can be parted: one block of each table is always read as a whole."""
MAX_MORE = 64
"""Most files that begin within one portion."""
MIN_GROWTH = 6
"""Rows take at least this many times the bytes of their blocks while they are processed; small rows take more."""

Get = Callable[[bytes], bytes | None]


Sums = dict[Hashable, tuple[int, int]]
"""For parts of table files, which never change: the number of their rows and the sum of the rows' hashes."""


def scan_rows(
    database: Database | ScratchDatabase, begin: bytes, end: bytes, *, readers: int = 1
) -> Iterator[PackedRows]:
    """Yield the rows of a database from key ``begin`` up to ``end``, in portions that are not empty.

    ``readers``: how many such iterators the caller has in parallel; they share ``MAX_BYTES``.

    All rows must be in table files. Nothing may be written meanwhile; compaction may run. Raises StorageError,
    FormatError, InternalError.
    """
    for portion in _portions(database, begin, end):
        yield from portion.rows(database.get, MAX_BYTES // readers)


def sum_range(database: Database, begin: bytes, end: bytes, known: Sums) -> tuple[int, int]:
    """Return the number of rows of a database from key ``begin`` up to ``end``, and the sum of their hashes.

    Parts of files that are ``known`` are not read again, even if another database has links to them. Raises what
    ``scan_rows`` raises.
    """
    count = total = 0
    for portion in _portions(database, begin, end):
        if portion.identity not in known:
            sums = [(len(rows), sum_row_hashes(rows)) for rows in portion.rows(database.get, MAX_BYTES)]
            known[portion.identity] = sum(rows for rows, _ in sums), sum(each for _, each in sums)
        rows_here, total_here = known[portion.identity]
        count += rows_here
        total += total_here
    return count, total


def _portions(database: Database | ScratchDatabase, begin: bytes, end: bytes) -> Iterator[Portion]:
    """Yield all portions between two keys. If a file is compacted away before it is opened, list the files again."""
    at, missing = begin, None
    while at < end:
        with closing(Sweep(database.folder, database.table_files())) as sweep:
            try:
                for portion in sweep.portions(at, end):
                    yield portion
                    at = portion.end
            except FileNotFoundError as gone:
                if gone.filename == missing:
                    raise StorageError(f"A table file of the database is missing: {gone}") from gone
                missing = gone.filename


class Sweep:
    """Goes through table files of a folder in key order. ``files``: newer ones first."""

    def __init__(self, folder: Path, files: Sequence[TableFile]) -> None:
        self._folder = folder
        self._waiting = sorted(enumerate(files), key=lambda each: each[1].first_key, reverse=True)
        self._open: dict[int, tuple[TableFile, SortedTable]] = {}

    def close(self) -> None:
        """Close all files."""
        for _, table in self._open.values():
            table.close()
        self._open.clear()

    def portions(self, begin: bytes, end: bytes) -> Iterator[Portion]:
        """Yield the rows from key ``begin`` up to ``end`` in portions.

        A range deletion hides all of a portion or nothing of it. Where one portion ends depends on the files alone. A
        file may be deleted once it is open. Raises FormatError, StorageError, FileNotFoundError.
        """
        at = begin
        while at < end:
            self._move_to(at)
            until = min((end, *(cut for _, table in self._open.values() for cut in _cuts_behind(table, at))))
            most_open = len(self._open) + MAX_MORE
            while self._waiting and self._waiting[-1][1].first_key < until:
                if len(self._open) == most_open:
                    until = self._waiting[-1][1].first_key
                else:
                    until = min((until, *_cuts_behind(self._open_next(), at)))
            yield Portion(at, until, tuple(self._parts(at, until)), str(self._folder))
            at = until

    def _move_to(self, at: bytes) -> None:
        """Open the files that begin at or before a key, and close those that end before it."""
        for age, (file, table) in list(self._open.items()):
            if file.last_key < at:
                table.close()
                del self._open[age]
        while self._waiting and self._waiting[-1][1].first_key <= at:
            if self._waiting[-1][1].last_key < at:
                self._waiting.pop()
            else:
                self._open_next()

    def _open_next(self) -> SortedTable:
        age, file = self._waiting[-1]
        table = SortedTable(self._folder / file.name, (file.first_key, file.last_key))
        self._open[age] = file, table
        self._waiting.pop()
        return table

    def _parts(self, begin: bytes, end: bytes) -> Iterator[tuple[SortedTable, int]]:
        """Yield the tables with rows there, newer first, each with the sequence below which its entries are hidden."""
        for _, (_, table) in sorted(self._open.items()):
            marks = [each.sequence for each in table.hidden if each.begin <= begin < each.end]
            if table.span(begin, end):
                yield table, max(marks, default=0)
            if marks:
                return  # all older rows are hidden


def _cuts_behind(table: SortedTable, at: bytes) -> Iterator[bytes]:
    """Yield the next cut of the table after a key, and where its range deletions begin and end after it."""
    behind = bisect_right(table.cuts, at)
    yield from table.cuts[behind : behind + 1]
    yield from (key for each in table.hidden for key in (each.begin, each.end) if key > at)


@dataclass(frozen=True)
class Portion:
    """Rows from key ``begin`` up to ``end``: tables, newest first, and below which sequence entries are hidden."""

    begin: bytes
    end: bytes
    parts: tuple[tuple[SortedTable, int], ...]
    what: str

    @property
    def identity(self) -> Hashable:
        """Everything that its rows depend on."""
        return self.begin, self.end, tuple((table.identity, hidden) for table, hidden in self.parts)

    def rows(self, get: Get, most_bytes: int) -> Iterator[PackedRows]:
        """Read the rows, one half after the other if they are too many. Yields nothing empty.

        ``get`` returns the database's value of a key. One row of each part, and one that has several entries, are
        compared with it. Raises StorageError, FormatError, InternalError.
        """
        waiting = [self]
        while waiting:
            portion = waiting.pop()
            entries = portion.entries(most_bytes)
            if entries is None:
                waiting += portion.halves()
            else:
                rows = portion.newest(entries, get)
                if len(rows):
                    yield rows

    def halves(self) -> list[Portion]:
        """Return the second half and the first half.

        They meet where a table begins within the portion, else in the middle of the table with most blocks there.
        """
        begins = sorted(table.first_key for table, _ in self.parts if self.begin < table.first_key < self.end)
        largest = max(self._spans, key=lambda span: span.stored_bytes * (len(span) > 1))
        middle = begins[len(begins) // 2] if begins else largest.middle
        if not self.begin < middle < self.end:
            raise FormatError(f"{self.what} is damaged: a table has several blocks for one key.")
        halves = replace(self, begin=middle), replace(self, end=middle)
        return [
            replace(half, parts=tuple(part for part in self.parts if part[0].span(half.begin, half.end)))
            for half in halves
        ]

    @cached_property
    def _spans(self) -> list[BlockRange]:
        return [table.span(self.begin, self.end) for table, _ in self.parts]

    def entries(self, most_bytes: int) -> Entries | None:
        """Return the entries of the tables, in their order; None if they would take more than ``most_bytes``.

        A table's only block does not count if it begins before the portion: halves would not make it smaller.
        """
        counts = [len(span) > 1 or self.begin < span.table.first_key < self.end for span in self._spans]
        least_bytes = most_bytes // MIN_GROWTH
        if sum(span.stored_bytes for span in compress(self._spans, counts)) > least_bytes:
            return None
        contents = [span.read() for span in self._spans]
        if sum(content.size_bytes for content in compress(contents, counts)) > least_bytes:
            return None
        blocks = [content.blocks() for content in contents]
        found = parse_entries([block for some in blocks for block in some], self.what)
        if any(counts) and found.size_bytes(np.repeat(counts, list(map(len, blocks)))) > most_bytes:
            return None
        entries = found.entries(self.what)
        hidden = np.repeat(np.array([hidden for _, hidden in self.parts], np.uint64), list(map(len, blocks)))
        if hidden.any():
            entries = entries.take(entries.sequences >= np.repeat(hidden, found.counts))
        return entries

    def newest(self, entries: Entries, get: Get) -> PackedRows:
        """Return the rows: the newest entry of each key, unless that is a deletion."""
        if len(self.parts) == 1 and not entries.sequences.any():  # no key is there twice
            entries = entries.take(between(entries.keys, np.arange(len(entries)), self.begin, self.end))
            rows = PackedRows(entries.keys, entries.values)
            if not entries.kinds.all():
                rows = rows.take(entries.kinds != DELETION)
        else:
            order, is_older = in_order(entries.keys)
            inside = between(entries.keys, order, self.begin, self.end)
            order, is_older = order[inside], is_older[inside]
            _check_newest(entries, order, is_older, get)
            order = order[~is_older & (entries.kinds[order] != DELETION)]
            rows = PackedRows(entries.keys.take(order), entries.values.take(order))
        if len(rows):
            middle = len(rows) // 2
            _check(rows.keys[middle], rows.values[middle], get)
        return rows


def between(keys: Packed, order: Integers, begin: bytes, end: bytes) -> slice:
    """Return where the keys from ``begin`` up to ``end`` are, in an ``order`` in which keys rise."""
    first = bisect_left(order, begin, key=keys.__getitem__)
    return slice(first, bisect_left(order, end, lo=first, key=keys.__getitem__))


def _check_newest(entries: Entries, order: Integers, is_older: Bools, get: Get) -> None:
    """Compare one key that has several entries, if there is one, with the database."""
    doubled = np.flatnonzero(is_older)
    if not len(doubled):
        return
    newest = int(order[doubled[0] - 1])
    _check(entries.keys[newest], None if entries.kinds[newest] == DELETION else entries.values[newest], get)


def _check(key: bytes, value: bytes | None, get: Get) -> None:
    if get(key) != value:
        raise InternalError(f"The row of the key {key.hex()} differs from the database's.")
