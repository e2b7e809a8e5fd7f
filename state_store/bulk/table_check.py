"""Whether a table file is what was written, by its own checksums: a part of the pass that reads the file anyway.

Every byte is covered. Each block (rows, filter, index, properties) ends with a checksum of it; blocks lie one after
the other from the first byte to the footer; and the footer has no byte that does not follow from where they are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from pyspark_ckpt.state_store.bulk.packed import Integers
from pyspark_ckpt.state_store.bulk.sorted_table import (
    FOOTER_BYTES,
    PORTION_BYTES,
    TRAILER_BYTES,
    Content,
    SortedTable,
)
from pyspark_ckpt.state_store.bulk.table_parts import footer_of
from pyspark_ckpt.state_store.errors import FormatError

_NO_BOUNDS = (b"", b"")


def check_table(path: Path) -> None:
    """Read a table file and raise FormatError that names it if it is damaged; FileNotFoundError, StorageError."""
    for _ in checked_pieces(path):
        pass


def checked_pieces(path: Path) -> Iterator[memoryview]:
    """All bytes of a table file, in order: the very bytes whose checksums were found right.

    Whoever uses a piece uses what was checked, but not all of it: that the file is whole is known after the last piece.
    Raises FormatError that names the file and says what is wrong, FileNotFoundError, StorageError.
    """
    try:
        with closing(SortedTable(path, _NO_BOUNDS)) as table:
            yield from _checked(table)
    except (IndexError, KeyError, ValueError, OverflowError, struct.error) as problem:
        raise FormatError(f"{path} is damaged: it cannot be read as a table file ({problem!r}).") from problem


def _checked(table: SortedTable) -> Iterator[memoryview]:
    at, size = _all_blocks(table)
    footer = table.size_bytes - FOOTER_BYTES
    ends = at + size + TRAILER_BYTES
    if at[0] != 0 or ends[-1] != footer or (at[1:] != ends[:-1]).any():
        raise table.damaged("its blocks do not lie one after the other")
    first = 0
    while first < len(at):
        behind = max(first + 1, int(np.searchsorted(ends, at[first] + PORTION_BYTES, "right")))
        begin, end = int(at[first]), int(ends[behind - 1])
        content = Content(table, table.bytes_at(begin, end - begin), at[first:behind] - begin, size[first:behind])
        content.check()
        yield memoryview(content.data)
        first = behind
    last = table.bytes_at(footer, FOOTER_BYTES)
    if last != footer_of(*table.footer):
        raise table.damaged("its last bytes are not those of a table file")
    yield memoryview(last)


def _all_blocks(table: SortedTable) -> tuple[Integers, Integers]:
    """Where all blocks begin, in their order, and their bytes without those at their ends."""
    others = np.array([*table.meta_blocks, *table.footer], np.int64)
    at = np.concatenate([table.blocks.at, others[:, 0]])
    size = np.concatenate([table.blocks.size, others[:, 1]])
    order = np.argsort(at, kind="stable")
    return at[order], size[order]
