"""Rows of a database to which a merge operator has added values, read from its table files in key order.

RocksDB needs the operator to read them, and rocksdict has none. It has no zlib, either, so table files with zlib are
read here, too. Spark's operator appends strings: the value of a key is the value last put, followed by the values added
since, from old to new.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.sst.blocks import DELETION, MERGE
from pyspark_ckpt.state_store.sst.table import BlockRange, SortedTable

_COMPRESSION, _ZLIB = b"rocksdb.compression", b"Zlib"
_UNKNOWN_BOUNDS = b"", b"\xff" * 64
"""The blocks that say how far range deletions go; files that have any are refused."""


class _Entry(NamedTuple):
    key: bytes
    age: int
    """Rises from new to old among the entries of a key."""
    kind: int
    value: bytes


def has_merges(folder: Path, names: Sequence[str]) -> bool:
    """Return whether a table file has values that are added to a key's value. Raises FormatError."""
    for name in names:
        with closing(_open(folder, name)) as table:
            if table.merge_operands:
                return True
    return False


def needs_own_reader(folder: Path, names: Sequence[str]) -> bool:
    """Return whether rocksdict cannot open a database with these table files: one has blocks of zlib."""
    for name in names:
        with suppress(FormatError), closing(_open(folder, name)) as table:  # for other forms, RocksDB reports the fault
            if table.properties.get(_COMPRESSION) == _ZLIB:
                return True
    return False


def merge_rows(folder: Path, names: Sequence[str], delimiter: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield all rows of the database with these table files. ``delimiter``: what lies between added values.

    Raises FormatError, StorageError.
    """
    with ExitStack() as stack:
        tables = [stack.enter_context(closing(_open(folder, name))) for name in names]
        for table in tables:
            if table.hidden:
                raise FormatError(
                    f"{table.path} has range deletions, and merge operands or blocks of zlib, which cannot be read "
                    "together."
                )
        merged = heapq.merge(*map(_entries, tables))
        for key, entries in groupby(merged, key=lambda entry: entry.key):
            value = _resolve(entries, delimiter)
            if value is not None:
                yield key, value


def _open(folder: Path, name: str) -> SortedTable:
    return SortedTable(folder / name, _UNKNOWN_BOUNDS, may_merge=True)


def _entries(table: SortedTable) -> Iterator[_Entry]:
    for found in BlockRange(table, 0, len(table.blocks)).entries():
        ages = (-found.sequences.astype("i8")).tolist()
        yield from map(_Entry, found.keys.strings(), ages, found.kinds.tolist(), found.values.strings())


def _resolve(entries: Iterator[_Entry], delimiter: bytes) -> bytes | None:
    """Return the value of a key from its entries, new ones first; None if it has none."""
    added: list[bytes] = []
    for entry in entries:
        if entry.kind != DELETION:
            added.append(entry.value)
        if entry.kind != MERGE:
            break
    return delimiter.join(reversed(added)) if added else None
