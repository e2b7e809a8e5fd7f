"""Rows of a database that a merge operator has added values to, read from its table files in key order.

RocksDB needs the operator to read them, and rocksdict has none. Spark's operator appends strings: the value of a key is
its last value that was put, followed by what was added since, from old to new.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from pyspark_ckpt.state_store.database import TableFile
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.sst.blocks import DELETION, MERGE
from pyspark_ckpt.state_store.sst.table import BlockRange, SortedTable


class _Entry(NamedTuple):
    key: bytes
    age: int
    """Rises from new to old among the entries of a key."""
    kind: int
    value: bytes


def has_merges(folder: Path, files: Sequence[TableFile]) -> bool:
    """Return whether one of the table files has values that are added to those of a key. Raises FormatError."""
    for file in files:
        with closing(_open(folder, file)) as table:
            if table.merge_operands:
                return True
    return False


def merge_rows(folder: Path, files: Sequence[TableFile], delimiter: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield all rows of the database with these table files. ``delimiter``: what lies between values that were added.

    Raises FormatError, StorageError.
    """
    with ExitStack() as stack:
        tables = [stack.enter_context(closing(_open(folder, file))) for file in files]
        for table in tables:
            if table.hidden:
                raise FormatError(
                    f"{table.path} has range deletions and merge operands, which cannot be read together."
                )
        merged = heapq.merge(*map(_entries, tables))
        for key, entries in groupby(merged, key=lambda entry: entry.key):
            value = _resolve(entries, delimiter)
            if value is not None:
                yield key, value


def _open(folder: Path, file: TableFile) -> SortedTable:
    return SortedTable(folder / file.name, (file.first_key, file.last_key), may_merge=True)


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
