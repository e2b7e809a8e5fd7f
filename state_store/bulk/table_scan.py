"""All rows of a database in a range of keys, many at once, read from its table files.

RocksDB's rule of what a key has is simple where nothing is in memory alone: of all entries of a key, the one in the
newest file counts. Files are newer the nearer their level is to 0; in level 0 RocksDB lists newer ones first. Ranges
of keys are read one after the other, so memory is bounded whatever the size of the files.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import pairwise

import numpy as np

from pyspark_ckpt.state_store.bulk.order import Bools, in_order
from pyspark_ckpt.state_store.bulk.packed import Integers, Packed
from pyspark_ckpt.state_store.bulk.rows import RowColumns
from pyspark_ckpt.state_store.bulk.sorted_table import DELETION, Entries, Hidden, SortedTable, entries_of
from pyspark_ckpt.state_store.database import Database
from pyspark_ckpt.state_store.errors import InternalError, StorageError

PORTION_BYTES = 2 << 20
"""So much of each table, before it was compressed, is about what is read at once."""
BLOCK_BYTES = 4 << 10
ALL_SEQUENCES = 1 << 56
ATTEMPTS = 5

Get = Callable[[bytes], bytes | None]


def columns_of(database: Database, begin: bytes, end: bytes) -> Iterator[RowColumns]:
    """Rows of a database from key ``begin`` up to ``end``, in portions that are not empty.

    Nothing may be written to it meanwhile; what is compacted does not matter. Raises StorageError, FormatError,
    InternalError.
    """
    with ExitStack() as stack:
        yield from scan(_opened(database, begin, end, stack), begin, end, database.get, str(database.folder))


def _opened(database: Database, begin: bytes, end: bytes, stack: ExitStack) -> list[SortedTable]:
    """The tables that may have rows there; that they are deleted later does not matter."""
    for _ in range(ATTEMPTS):
        within = [each.name for each in database.table_files() if each.first_key < end and begin <= each.last_key]
        try:
            return [stack.enter_context(closing(SortedTable(database.folder / name))) for name in within]
        except FileNotFoundError:  # compacted just now
            stack.close()
    raise StorageError(f"The files of {database.folder} are replaced faster than they can be opened.")


def scan(tables: Sequence[SortedTable], begin: bytes, end: bytes, get: Get, what: str) -> Iterator[RowColumns]:
    """The rows of ``tables``, newest first, from key ``begin`` up to ``end``, in portions that are not empty.

    ``get`` is what the database has for a key: it is asked now and then, to see that the order is right.
    Raises FormatError about ``what``, InternalError.
    """
    for first, behind in pairwise(_cuts(tables, begin, end)):
        entries, has_versions = _entries(tables, first, behind, what)
        if has_versions:
            order, is_older = in_order(entries.keys)
        else:
            order, is_older = np.arange(len(entries)), np.zeros(len(entries), np.bool_)
        inside = _between(entries.keys, order, first, behind)
        order, is_older = order[inside], is_older[inside]
        _check_newest(entries, order, is_older, get)
        order = order[~is_older & (entries.kinds[order] != DELETION)]
        if len(order):
            yield RowColumns(entries.keys.taken(order), entries.values.taken(order))


def _cuts(tables: Sequence[SortedTable], begin: bytes, end: bytes) -> list[bytes]:
    """Keys at which one portion ends and the next begins."""
    cuts = {begin, end}
    for table in tables:
        blocks = table.blocks
        first, behind = blocks.within(begin, end)
        portions = np.cumsum(np.maximum(blocks.size[first:behind], BLOCK_BYTES)) // PORTION_BYTES
        cuts.update(blocks.keys[first + int(at)] + b"\0" for at in np.flatnonzero(np.diff(portions)))
        cuts.update(key for each in table.hidden for key in (each.begin, each.end))
    return sorted(cut for cut in cuts if begin <= cut <= end)


def _entries(tables: Sequence[SortedTable], begin: bytes, end: bytes, what: str) -> tuple[Entries, bool]:
    """Entries of a portion that are not hidden, table by table, and whether there may be several of one key.

    Some of them are before the portion or behind it.
    """
    blocks: list[bytes] = []
    parts: list[tuple[int, Sequence[Hidden]]] = []
    hidden: list[Hidden] = []
    for table in tables:
        own = [each for each in table.hidden if each.begin < end and begin < each.end]
        found = table.content(begin, end)
        if found:
            parts.append((len(blocks), [*hidden, *own]))
            blocks += found
        hidden += [replace(each, sequence=ALL_SEQUENCES) for each in own]
        if any(each.begin <= begin and end <= each.end for each in own):
            break  # and so are the rows of all that are older
    entries, counts = entries_of(blocks, what)
    if hidden:
        kept = np.ones(len(entries), np.bool_)
        ends = np.cumsum(counts)
        bounds = [*(int(ends[first - 1]) if first else 0 for first, _ in parts), len(entries)]
        for (_, marks), (at, behind) in zip(parts, pairwise(bounds), strict=True):
            for mark in marks:
                first = bisect_left(entries.keys, mark.begin, at, behind)
                inside = slice(first, bisect_left(entries.keys, mark.end, first, behind))
                kept[inside] &= entries.sequences[inside] >= np.uint64(mark.sequence)
        entries = entries.taken(kept)
    return entries, len(parts) > 1 or bool(entries.sequences.any())


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
