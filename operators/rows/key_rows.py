"""States with one row for each key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from pyspark_ckpt.operators.encoding.suffixes import Suffixes
from pyspark_ckpt.operators.rows.base import UNREAD, BaseRows
from pyspark_ckpt.operators.rows.state_rows import (
    ARRAYS_BYTES,
    ROW_BYTES,
    FormChoice,
    RowCount,
    StateRows,
    Written,
    sort_rows,
)
from pyspark_ckpt.state_store.arrays.cells import Cells, join_cells, overlay
from pyspark_ckpt.state_store.arrays.order import find_positions
from pyspark_ckpt.state_store.arrays.writes import Writes, newest
from pyspark_ckpt.state_store.format.keys import state_head

MAX_COLUMNS = 4
"""Columns of more calls than this are merged, because a read of many keys looks through those of each call."""


class KeyRows(StateRows):
    """A state with one row for each key.

    Written rows have one of two forms: by key, which is fast for one key or a few, or in columns, which is fast for
    many. A call that needs the other form converts all of them: see ``FormChoice``.
    """

    def __init__(self, number: int, session: BaseRows) -> None:
        """Read and write state ``number``."""
        self.number = number
        self._head = state_head(number)
        self._session = session
        self._at = session.position
        self._base: dict[bytes, bytes | None] = {}
        self._base_of: Sequence[bytes] = ()
        self._written: dict[bytes, bytes | None] = {}
        self._last_written = b""
        self._in_order = True
        self._columns: list[tuple[Suffixes, Cells]] = []
        """Written rows in columns; there are none if there are rows by key. For one key, the last one wins."""
        self._choice = FormChoice()
        self._columns_read: tuple[Suffixes | None, Cells] = (None, Cells.absent(0))
        self._ahead: tuple[Suffixes, Cells] | None = None
        """Rows of the base version that are held until the flush. ``_ahead_of``: the same by key, once needed."""
        self._ahead_of: dict[bytes, bytes | None] = {}
        self._count = RowCount(session)

    def get(self, suffix: bytes) -> bytes | None:
        """Return the row of a key."""
        if self._columns:
            self._prefer_rows()
        value = self._written.get(suffix, UNREAD)
        if value is UNREAD:
            value = self._base.get(suffix, UNREAD)
            if value is UNREAD:
                value = self._look_up(suffix)
        return value  # type: ignore[no-any-return]

    def put(self, suffix: bytes, value: bytes | None) -> None:
        """Write the row of a key; None deletes it."""
        if self._columns:
            self._prefer_rows()
        before = self._written.get(suffix, UNREAD)
        if before is UNREAD:
            before = self._base.get(suffix, UNREAD)
            if before is UNREAD:
                self._count.unread(self._head + suffix)
                before = None
            if suffix > self._last_written:
                self._last_written = suffix
            else:
                self._in_order = False
        if (value is None) != (before is None):
            self._count.add(1 if before is None else -1)
        self._written[suffix] = value
        self._session.hold(ROW_BYTES + len(value or b""))

    def get_cells(self, suffixes: Suffixes) -> Cells:
        """Return the rows of many different keys, which are in stored order."""
        self._choose_form(len(suffixes))
        return Cells.of(self._get_each(suffixes)) if self._written else self._get_from_columns(suffixes)

    def _get_from_columns(self, suffixes: Suffixes) -> Cells:
        """``get_cells`` while no rows are kept by key."""
        if self._columns and self._columns[-1][0] is suffixes:
            return self._columns[-1][1]
        cells = self._read_base(suffixes)
        for some, changes in self._columns:
            cells = overlay(suffixes.packed, cells, some.packed, changes)
        return cells

    def get_ahead(self, suffixes: Suffixes) -> Cells:
        """``get_cells`` for keys whose rows may be needed again: they are held until the flush."""
        self._ahead, self._ahead_of = (suffixes, self._read_base(suffixes)), {}
        return self.get_cells(suffixes)

    def put_cells(self, suffixes: Suffixes, cells: Cells) -> None:
        """Write the rows of many different keys, which are in stored order."""
        if not len(suffixes):
            return
        self._choose_form(len(suffixes))
        if self._written:
            absent, row_bytes = self._get_each(suffixes).count(None), ROW_BYTES
            self._count.add(int(cells.there.sum()) - len(suffixes) + absent)
            self._write_all(suffixes, cells)
        else:
            row_bytes = ARRAYS_BYTES
            before = self._get_from_columns(suffixes)
            self._count.add(int(cells.there.sum()) - int(before.there.sum()))
            if self._columns and self._columns[-1][0] is suffixes:
                self._columns.pop()
            self._columns.append((suffixes, cells))
            if len(self._columns) > MAX_COLUMNS:
                self._columns = [_split_writes(self._newest())]
        size_bytes = int(suffixes.packed.size.sum()) + int(cells.values.size.sum())
        self._session.hold(size_bytes + row_bytes * len(suffixes))

    @property
    @override
    def change(self) -> int:
        return self._count.resolve()

    @override
    def flush(self, end: bytes | None) -> Written:
        if self._columns:
            return self.take_arrays(end).prefix(self._head)
        is_ordered, taken = self._in_order, self._take(end)
        if is_ordered:
            return zip(map(self._head.__add__, taken), taken.values(), strict=True)
        return sort_rows(self._head, taken)

    def take(self, end: bytes | None) -> dict[bytes, bytes | None]:
        """Return and forget what was written for keys below ``end`` (None: all keys), in any order."""
        self._to_rows()
        return self._take(end)

    def take_arrays(self, end: bytes | None) -> Writes:
        """``take`` in columns and in stored order."""
        self._to_columns()
        taken, left = self._newest().apart(end)
        self._columns = [_split_writes(left)] if len(left) else []
        self._forget()
        return taken

    def _take(self, end: bytes | None) -> dict[bytes, bytes | None]:
        self._forget()
        self._in_order, self._last_written = True, b""
        taken, self._written = self._written, {}
        for suffix in [] if end is None else [each for each in taken if each >= end]:
            self._in_order &= suffix > self._last_written
            self._last_written = suffix
            self._written[suffix] = taken.pop(suffix)
        return taken

    def _forget(self) -> None:
        """Discard what was read."""
        self._count.resolve()
        self._base, self._base_of, self._ahead, self._ahead_of = {}, (), None, {}
        self._columns_read = (None, Cells.absent(0))

    def _newest(self) -> Writes:
        """Return what was written in columns, each key once and in stored order."""
        parts = [Writes(suffixes.packed, cells) for suffixes, cells in self._columns]
        return parts[0] if len(parts) == 1 else newest(parts)

    def _choose_form(self, count: int) -> None:
        """Convert the written rows if a call for ``count`` keys is faster with the other form."""
        if self._columns:
            if self._choice.prefers_rows(count, self._count_in_columns()):
                self._prefer_rows()
        elif len(self._written) <= count:
            self._to_columns()

    def _prefer_rows(self) -> None:
        """Convert rows that are in columns to rows by key. If these take too much memory, all are spilled instead."""
        self._session.hold(ROW_BYTES * self._count_in_columns())
        self._to_rows()

    def _count_in_columns(self) -> int:
        return sum(len(suffixes) for suffixes, _ in self._columns)

    def _to_columns(self) -> None:
        """Convert rows that are kept by key to columns."""
        if self._written:
            self._to_rows()  # of a conversion that has failed midway
            self._columns = [_split_writes(Writes.of(sort_rows(b"", self._written)))]
            self._written, self._in_order, self._last_written = {}, True, b""

    def _to_rows(self) -> None:
        """Convert rows that are in columns to rows by key. After a failure midway, the next call begins again."""
        for suffixes, cells in self._columns:
            self._write_all(suffixes, cells)
        self._columns = []

    def _write_all(self, suffixes: Suffixes, cells: Cells) -> None:
        self._in_order &= suffixes[0] > self._last_written
        self._last_written = max(self._last_written, suffixes[len(suffixes) - 1])
        self._written.update(zip(suffixes, cells.strings(), strict=True))

    def _look_up(self, suffix: bytes) -> bytes | None:
        self._load(self._at.upcoming)
        value = self._base.get(suffix, UNREAD)
        if value is UNREAD:
            value = self._base[suffix] = self._fetch([suffix])[0]
        return value  # type: ignore[no-any-return]

    def _get_each(self, suffixes: Suffixes) -> list[bytes | None]:
        """``get`` the rows of some keys, of which those that are not written are read at once."""
        self._load(suffixes)
        return list(map(self.get, suffixes))

    def _load(self, suffixes: Sequence[bytes]) -> None:
        """Read those of ``suffixes`` that are not written from the base version, unless they were the last ones."""
        if self._base_of is not suffixes:
            unread = [suffix for suffix in suffixes if suffix not in self._written]
            self._base = dict(zip(unread, self._fetch(unread), strict=True))
            self._base_of = suffixes

    def _fetch(self, suffixes: Sequence[bytes]) -> list[bytes | None]:
        if self._ahead is not None and not self._ahead_of:
            known, cells = self._ahead
            self._ahead_of = dict(zip(known, cells.strings(), strict=True))
        if not self._ahead_of:
            return self._session.get_many([self._head + suffix for suffix in suffixes])
        rows = [self._ahead_of.get(suffix, UNREAD) for suffix in suffixes]
        unread = [position for position, row in enumerate(rows) if row is UNREAD]
        found = self._session.get_many([self._head + suffixes[position] for position in unread])
        for position, row in zip(unread, found, strict=True):
            rows[position] = row
        return rows

    def _read_base(self, suffixes: Suffixes) -> Cells:
        if self._columns_read[0] is not suffixes:
            self._columns_read = suffixes, self._look_up_all(suffixes)
        return self._columns_read[1]

    def _look_up_all(self, suffixes: Suffixes) -> Cells:
        keys = suffixes.packed
        if self._ahead is None:
            return self._session.get_cells(keys.prefix(self._head))
        known, cells = self._ahead
        places = find_positions(known.packed, keys)
        is_unknown = places < 0
        found = self._session.get_cells(keys.take(is_unknown).prefix(self._head))
        places[is_unknown] = len(known) + np.arange(len(found))
        return join_cells([cells, found]).take(places)


def _split_writes(written: Writes) -> tuple[Suffixes, Cells]:
    return Suffixes(written.keys), written.cells
