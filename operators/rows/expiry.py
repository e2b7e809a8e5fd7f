"""Rows with a time to live, and the index by which those that have expired are found and freed.

The index of a state is a state in key order. It has a row for each row of the other under the instant of its last
write, rounded down to a step: so a row that is written often moves in the index a few times in its life only. Every
batch frees what has expired, oldest first and a bounded number of rows. The index may hold too much, never too
little: a row in it counts only if the row it names has that instant. So nobody counts its rows: to know whether one
is there before it is written would take a look-up for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from pyspark_ckpt.operators.declarations.states import INDEX_SUFFIX
from pyspark_ckpt.operators.encoding.suffixes import Suffixes, different
from pyspark_ckpt.operators.rows.base import UNREAD, Moment
from pyspark_ckpt.operators.rows.entry_rows import Entries, EntryRows
from pyspark_ckpt.operators.rows.key_rows import KeyRows
from pyspark_ckpt.operators.rows.life import Life, Stamps, index_instant
from pyspark_ckpt.operators.rows.ordered_rows import (
    INSTANT,
    THERE,
    OrderedRows,
    encode_ordered_key,
    encode_ordered_keys,
    numbers_at,
    row_of,
    rows_of,
)
from pyspark_ckpt.operators.rows.state_rows import Written
from pyspark_ckpt.state_store.columns.cells import Cells
from pyspark_ckpt.state_store.columns.packed import Packed
from pyspark_ckpt.state_store.columns.writes import Writes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.rows.life import Bools

Rows = TypeVar("Rows", KeyRows, EntryRows)

MIN_SWEPT = 10_000
MAX_BEGUN_BYTES = 16 << 20
"""A sweep ends with that: rows whose lives begin are held in memory, unlike those that are freed."""


def index_name(state: str) -> str:
    """The name of the state that is the index of ``state``."""
    return f"{state}{INDEX_SUFFIX}"


class ExpiryIndex(OrderedRows):
    """The index of one state."""

    def move(self, row: bytes, before: bytes | None, after: bytes | None) -> None:
        """A row (suffix and entry) was ``before`` and is ``after`` now; UNREAD: what it was is not known."""
        old = None if before is UNREAD else index_instant(before)
        self._move(row, old, index_instant(after))

    def move_all(self, rows: Packed, before: Cells, after: Cells) -> None:
        """``move`` of many rows."""
        old, new = Stamps.of(before).instants, Stamps.of(after).instants
        has_left, has_entered = (old != new) & (old >= 0), (old != new) & (new >= 0)
        self.remove_all(encode_ordered_keys(old[has_left], rows.take(has_left)))
        entered = encode_ordered_keys(new[has_entered], rows.take(has_entered))
        self.write_all(entered, Packed.of([THERE]).take(np.zeros(len(entered), np.int64)))

    def write(self, key: bytes, value: bytes) -> None:
        """Write a row that says more than that it is there."""
        self._unfold()
        self._written[key] = value

    def write_all(self, keys: Packed, values: Packed) -> None:
        """``write`` of many rows."""
        self.put_run(Writes(keys, Cells.present(values)))

    def remove_all(self, keys: Packed) -> None:
        """Delete many rows."""
        self.put_run(Writes(keys, Cells.absent(len(keys))))

    def _move(self, row: bytes, old: int | None, new: int | None) -> None:
        if old != new:
            if old is not None:
                self.put(encode_ordered_key(old, row), there=False)
            if new is not None:
                self.put(encode_ordered_key(new, row), there=True)

    def scan_expired(self, life: Life) -> Iterator[list[tuple[bytes, bytes]]]:
        """Index rows of the base version whose step has passed, oldest first: their keys, and what they say.

        In portions that are not empty. Rows whose lives have not begun, and may begin, are among them.
        """
        end = life.dead_ms >> life.step_bits << life.step_bits
        return self.portions(INSTANT.pack(max(end, int(life.begins_now))))

    def settle(self, keys: Packed, stored: Cells, life: Life) -> tuple[Bools, Cells]:
        """Remove those of the index rows ``keys`` whose rows, ``stored``, do not live, and move those that begin to.

        Returns which rows change, and what is to become of these: the dead are absent.
        """
        stamps = Stamps.of(stored)
        are_there = stamps.instants == numbers_at(keys, 0).astype(np.int64)
        are_dead, begin = are_there & life.are_dead(stamps), are_there & life.are_unbegun(stamps)
        begun = {position: life.begin(stored.values[position]) for position in np.flatnonzero(begin).tolist()}
        for position, row in begun.items():
            self.move(row_of(keys[position]), stored.values[position], row)
        self.remove_all(keys.take(~are_there | are_dead))
        change = are_dead | begin
        return change, Cells.of([begun.get(position) for position in np.flatnonzero(change).tolist()])


class _TimedRows(Generic[Rows]):
    """Rows of a state with a time to live."""

    def __init__(self, rows: Rows, life: Life, index: ExpiryIndex) -> None:
        """Keep ``index`` as ``rows`` are written."""
        self._rows: Rows = rows
        self._life, self._index = life, index

    def flush(self, end: bytes | None) -> Written:
        """What was written for keys below ``end``, or all of it, in stored order; it is forgotten."""
        return self._rows.flush(end)

    @property
    def change(self) -> int:
        """How many rows more there are than in the base version."""
        return self._rows.change

    def _sweep(self, most: int, settle: Callable[[Packed], Cells]) -> int:
        """Free up to ``most`` expired rows, or let their lives begin; returns how many were freed."""
        freed = begun_bytes = 0
        for rows in self._index.scan_expired(self._life):
            keys = Packed.of([key for key, _ in rows[:most]])
            changes = settle(keys)
            freed += int((~changes.there).sum())
            begun_bytes += int(changes.values.size.sum())
            most -= len(keys)
            if most <= 0 or begun_bytes >= MAX_BEGUN_BYTES:
                break
        return freed


class TimedKeyRows(_TimedRows[KeyRows]):
    """KeyRows whose rows have a time to live."""

    def get(self, suffix: bytes) -> bytes | None:
        """See KeyRows; None for an expired row."""
        value = self._life.value(self._rows.get(suffix))
        if value is not None and self._life.refreshed_by_reads:
            self.put(suffix, value)
        return value

    def put(self, suffix: bytes, value: bytes | None) -> None:
        """See KeyRows."""
        after = None if value is None else self._life.stamp(value)
        self._index.move(suffix, self._rows.get(suffix), after)
        self._rows.put(suffix, after)

    def get_cells(self, suffixes: Suffixes) -> Cells:
        """See KeyRows; absent where a row has expired."""
        seen = self._life.filter_seen(self._rows.get_cells(suffixes))
        if self._life.refreshed_by_reads:
            alive = np.flatnonzero(seen.there)
            self.put_cells(suffixes.at(alive), seen.take(alive))
        return seen

    def put_cells(self, suffixes: Suffixes, cells: Cells) -> None:
        """See KeyRows."""
        after = self._life.stamp_cells(cells)
        self._index.move_all(suffixes.packed, self._rows.get_cells(suffixes), after)
        self._rows.put_cells(suffixes, after)

    def sweep(self, most: int) -> int:
        """Free up to ``most`` expired rows; returns how many."""
        return self._sweep(most, self._settle)

    def _settle(self, keys: Packed) -> Cells:
        suffixes, places = different(rows_of(keys))
        change, changes = self._index.settle(keys, self._rows.get_cells(suffixes).take(places), self._life)
        order = np.argsort(places[change])
        self._rows.put_cells(suffixes.at(places[change][order]), changes.take(order))
        return changes


class TimedEntryRows(_TimedRows[EntryRows]):
    """EntryRows whose rows have a time to live."""

    def get(self, suffix: bytes, entry: bytes) -> bytes | None:
        """See EntryRows; None for an expired row."""
        stored = self._rows.get(suffix, entry)
        value = self._life.value(stored)
        if value is not None and self._life.refreshed_by_reads:
            self._write(suffix, entry, value, stored, there=True)
        return value

    def get_cells(self, at: Entries) -> Cells:
        """See EntryRows; absent where a row has expired."""
        seen = self._life.filter_seen(self._rows.get_cells(at))
        if self._life.refreshed_by_reads:
            alive = np.flatnonzero(seen.there)
            self.put_cells(at.take(alive), seen.take(alive))
        return seen

    def put(self, suffix: bytes, entry: bytes, value: bytes | None) -> None:
        """See EntryRows."""
        self._write(suffix, entry, value, self._rows.peek(suffix, entry), there=None)

    def put_cells(self, at: Entries, cells: Cells) -> None:
        """See EntryRows."""
        if at.has_twins:  # what is before a row is what its last turn has made of it
            for suffix, entry, value in at.with_values(cells):
                self.put(suffix, entry, value)
            return
        before, after = self._rows.get_cells(at), self._life.stamp_cells(cells)
        self._index.move_all(at.keys, before, after)
        self._rows.put_cells(at, after)

    def scan(self, suffix: bytes, begin: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """See EntryRows; without expired rows. A read refreshes a row unless it has been written or removed since."""
        return self._living(suffix, self._rows.scan(suffix, begin, end), self._rows.moment)

    def _living(
        self, suffix: bytes, rows: Iterator[tuple[bytes, bytes]], moment: Moment
    ) -> Iterator[tuple[bytes, bytes]]:
        for entry, stored in rows:
            value = self._life.value(stored)
            if value is not None:
                if self._life.refreshed_by_reads and self._rows.is_still(suffix, entry, stored, moment):
                    self._write(suffix, entry, value, stored, there=True)
                yield entry, value

    def remove_all(self, suffix: bytes, begin: bytes = b"") -> None:
        """See EntryRows; expired rows as well. Their rows in the index stay until their time is over."""
        self._rows.remove_all(suffix, begin)

    def sweep(self, most: int, ends_of_keys: Callable[[Packed], NDArray[np.int64]]) -> int:
        """Free up to ``most`` expired rows; returns how many. ``ends_of_keys``: where suffixes end in rows."""
        return self._sweep(most, partial(self._settle, ends_of_keys))

    def _settle(self, ends_of_keys: Callable[[Packed], NDArray[np.int64]], keys: Packed) -> Cells:
        rows = rows_of(keys)
        at = Entries(rows, ends_of_keys(rows))
        change, changes = self._index.settle(keys, self._rows.get_cells(at), self._life)
        self._rows.put_run(at.take(change), changes, -int((~changes.there).sum()))
        return changes

    def _write(
        self, suffix: bytes, entry: bytes, value: bytes | None, before: bytes | None, *, there: bool | None
    ) -> None:
        after = None if value is None else self._life.stamp(value)
        self._index.move(suffix + entry, before, after)
        self._rows.put(suffix, entry, after, there=there)
