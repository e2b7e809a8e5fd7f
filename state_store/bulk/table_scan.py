"""All rows of a database in a range of keys, many at once, read from its table files.

RocksDB's rule of what a key has is simple where nothing is in memory alone: of all entries of a key, the one in the
newest file counts. Files are newer the nearer their level is to 0; in level 0 RocksDB lists newer ones first. Ranges
of keys are read one after the other, so memory is bounded whatever the size of the files.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pyspark_ckpt.state_store.bulk.blocks import DELETION, Entries, entries_of
from pyspark_ckpt.state_store.bulk.order import Bools, in_order
from pyspark_ckpt.state_store.bulk.packed import Integers, Packed
from pyspark_ckpt.state_store.bulk.rows import RowColumns
from pyspark_ckpt.state_store.bulk.sorted_table import SortedTable
from pyspark_ckpt.state_store.bulk.sums import sum_of
from pyspark_ckpt.state_store.database import Database
from pyspark_ckpt.state_store.errors import InternalError, StorageError

ATTEMPTS = 5

Get = Callable[[bytes], bytes | None]


Sums = dict[Hashable, tuple[int, int]]
"""How many rows there are in parts of table files, which never change, and what they hash to, added up."""


def columns_of(database: Database, begin: bytes, end: bytes) -> Iterator[RowColumns]:
    """Rows of a database from key ``begin`` up to ``end``, in portions that are not empty.

    Nothing may be written to it meanwhile; what is compacted does not matter. Raises StorageError, FormatError,
    InternalError.
    """
    with _opened(database, begin, end) as tables:
        yield from scan(tables, begin, end, database.get, str(database.folder))


def sums_of(database: Database, begin: bytes, end: bytes, known: Sums) -> tuple[int, int]:
    """How many rows a database has from key ``begin`` up to ``end``, and what they hash to, added up.

    Parts of files that are ``known``, also from another database with links to them, are not read again. Raises as
    ``columns_of``.
    """
    count = total = 0
    with _opened(database, begin, end) as tables:
        for portion in _portions(tables, begin, end):
            if portion.identity not in known:
                rows = portion.rows(database.get, str(database.folder))
                known[portion.identity] = len(rows), sum_of(rows)
            rows_here, total_here = known[portion.identity]
            count += rows_here
            total += total_here
    return count, total


@contextmanager
def _opened(database: Database, begin: bytes, end: bytes) -> Iterator[list[SortedTable]]:
    """The tables that may have rows there, newest first; that they are deleted later does not matter."""
    with ExitStack() as stack:
        for _ in range(ATTEMPTS):
            within = [each for each in database.table_files() if each.first_key < end and begin <= each.last_key]
            try:
                tables = [
                    stack.enter_context(
                        closing(SortedTable(database.folder / each.name, (each.first_key, each.last_key)))
                    )
                    for each in within
                ]
            except FileNotFoundError:  # compacted just now
                stack.close()
            except OSError as problem:
                raise StorageError(f"Could not open the table files of {database.folder}: {problem}") from problem
            else:
                yield tables
                return
    raise StorageError(f"The files of {database.folder} are replaced faster than they can be opened.")


def scan(tables: Sequence[SortedTable], begin: bytes, end: bytes, get: Get, what: str) -> Iterator[RowColumns]:
    """The rows of ``tables``, newest first, from key ``begin`` up to ``end``, in portions that are not empty.

    ``get`` is what the database has for a key: it is asked now and then, to see that the order is right.
    Raises FormatError about ``what``, InternalError.
    """
    for portion in _portions(tables, begin, end):
        rows = portion.rows(get, what)
        if len(rows):
            yield rows


def _portions(tables: Sequence[SortedTable], begin: bytes, end: bytes) -> Iterator[_Portion]:
    """Ranges of keys, each in whole hidden by a mark or not at all, and which tables have rows in them."""
    cuts = {begin, end}
    for table in tables:
        cuts.update(table.cuts)
        cuts.update(key for each in table.hidden for key in (each.begin, each.end))
    for first, behind in pairwise(sorted(cut for cut in cuts if begin <= cut <= end)):
        parts = []
        for table in tables:
            marks = tuple(each.sequence for each in table.hidden if each.begin <= first < each.end)
            if table.has(first, behind):
                parts.append((table, max(marks, default=0)))
            if marks:
                break  # what is older is hidden
        yield _Portion(first, behind, tuple(parts))


@dataclass(frozen=True)
class _Portion:
    """Rows from key ``begin`` up to ``end``: tables, newest first, and below which sequence entries are hidden."""

    begin: bytes
    end: bytes
    parts: tuple[tuple[SortedTable, int], ...]

    @property
    def identity(self) -> Hashable:
        """What its rows follow from."""
        return self.begin, self.end, tuple((table.identity, hidden) for table, hidden in self.parts)

    def rows(self, get: Get, what: str) -> RowColumns:
        """Read them."""
        contents = [table.content(self.begin, self.end) for table, _ in self.parts]
        entries, counts = entries_of([block for content in contents for block in content], what)
        hidden = np.repeat(
            np.array([hidden for _, hidden in self.parts], np.uint64), [len(content) for content in contents]
        )
        if hidden.any():
            entries = entries.taken(entries.sequences >= np.repeat(hidden, counts))
        if len(self.parts) > 1 or entries.sequences.any():
            order, is_older = in_order(entries.keys)
        else:  # no key is there twice
            order, is_older = np.arange(len(entries)), np.zeros(len(entries), np.bool_)
        inside = _between(entries.keys, order, self.begin, self.end)
        order, is_older = order[inside], is_older[inside]
        _check_newest(entries, order, is_older, get)
        order = order[~is_older & (entries.kinds[order] != DELETION)]
        return RowColumns(entries.keys.taken(order), entries.values.taken(order))


def _between(keys: Packed, order: Integers, begin: bytes, end: bytes) -> slice:
    """Where, in an order in which they rise, the keys from ``begin`` up to ``end`` are."""
    first = bisect_left(order, begin, key=keys.__getitem__)
    return slice(first, bisect_left(order, end, lo=first, key=keys.__getitem__))


def _check_newest(entries: Entries, order: Integers, is_older: Bools, get: Get) -> None:
    """Compare one row of which there are several entries with what the database says of it."""
    doubled = np.flatnonzero(is_older)
    if not len(doubled):
        return
    newest = int(order[doubled[0] - 1])
    expected = None if entries.kinds[newest] == DELETION else entries.values[newest]
    if get(entries.keys[newest]) != expected:
        raise InternalError(f"The row of the key {entries.keys[newest].hex()} is not what the database has.")
