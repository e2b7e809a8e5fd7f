"""Rows with a time to live, and the index that finds expired rows so that they can be freed.

The index of a state is a state of its own, in key order. It has one row per row of the indexed state, under the instant
of that row's last write, rounded down to a step. A row that is written often therefore moves in the index only a few
times in its life. Every batch frees a bounded number of expired rows, oldest first: more than it writes, so that they
do not pile up. The index may have too many rows, never too few: an index row counts only if the row that it names has
that instant. Index rows are not counted: a count would need a look-up before every write.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from typing_extensions import override

from pyspark_ckpt.operators.declarations.states import INDEX_SUFFIX
from pyspark_ckpt.operators.encoding.suffixes import Suffixes, different
from pyspark_ckpt.operators.rows.base import UNREAD, BaseRows, Moment
from pyspark_ckpt.operators.rows.entry_rows import EntryKeys, EntryRows
from pyspark_ckpt.operators.rows.event_time import Times
from pyspark_ckpt.operators.rows.key_rows import KeyRows
from pyspark_ckpt.operators.rows.ordered_rows import (
    INSTANT,
    THERE,
    OrderedRows,
    decode_ordered_key,
    decode_ordered_keys,
    encode_ordered_key,
    encode_ordered_keys,
    numbers_at,
)
from pyspark_ckpt.operators.rows.state_rows import ROW_BYTES, StateRows, Written
from pyspark_ckpt.operators.rows.ttl_stamps import Life, Stamps, index_instant
from pyspark_ckpt.state_store.arrays.cells import Cells
from pyspark_ckpt.state_store.arrays.packed import Packed
from pyspark_ckpt.state_store.arrays.writes import Writes
from pyspark_ckpt.state_store.format.keys import HASH_BYTES

if TYPE_CHECKING:
    from pyspark_ckpt.operators.rows.ttl_stamps import Bools

Rows = TypeVar("Rows", KeyRows, EntryRows)

MAX_BEGUN_BYTES = 16 << 20
"""A sweep ends after so much: rows whose lives begin are held in memory, unlike those that are freed."""


def index_name(state: str) -> str:
    """Return the name of the state that is the index of ``state``."""
    return f"{state}{INDEX_SUFFIX}"


_ALL_OVER = b"\xff" * (HASH_BYTES + 1)
"""After the hashes of all keys."""


class ExpiryIndex(OrderedRows):
    """The index of one state."""

    @override
    def __init__(self, number: int, session: BaseRows) -> None:
        super().__init__(number, session)
        self.entered = 0
        """How many rows, or elements of lists, this task has given a time to live, or a new one."""
        self.allowed = 0
        """How many expired rows this task may have freed."""
        self._expired: Iterator[list[tuple[bytes, bytes]]] | None = None
        self._given_back: list[tuple[bytes, bytes]] = []
        self._turns_over = b""
        """The turn of keys with hashes below is over: what this task has written for them is not seen any more."""

    @override
    def flush(self, end: bytes | None) -> Written:
        self._turns_over = _ALL_OVER if end is None else end
        return super().flush(end)

    @override
    def spill(self) -> Written:
        return super().flush(None)

    def move(self, row: bytes, before: bytes | None, after: bytes | None) -> None:
        """Index a row (suffix and entry) that was ``before`` and is now ``after``. ``before`` is UNREAD if unknown."""
        old = None if before is UNREAD else index_instant(before)
        self._move(row, old, index_instant(after))

    def move_all(self, rows: Packed, before: Cells, after: Cells) -> None:
        """``move`` many rows."""
        old, new = Stamps.of(before).instants, Stamps.of(after).instants
        has_left, has_entered = (old != new) & (old >= 0), (old != new) & (new >= 0)
        self.entered += int(has_entered.sum())
        self.remove_all(encode_ordered_keys(old[has_left], rows.take(has_left)))
        entered = encode_ordered_keys(new[has_entered], rows.take(has_entered))
        self.write_all(entered, Packed.of([THERE]).take(np.zeros(len(entered), np.int64)))

    def write(self, key: bytes, value: bytes) -> None:
        """Write an index row with a value of its own."""
        self._to_rows()
        self._written[key] = value
        self._hold(ROW_BYTES + len(value))

    def write_all(self, keys: Packed, values: Packed) -> None:
        """``write`` many rows."""
        self.put_writes(Writes(keys, Cells.present(values)))

    def remove_all(self, keys: Packed) -> None:
        """Delete many rows."""
        self.put_writes(Writes(keys, Cells.absent(len(keys))))

    def _move(self, row: bytes, old: int | None, new: int | None) -> None:
        if old != new:
            if old is not None:
                self.put(encode_ordered_key(old, row), there=False)
            if new is not None:
                self.entered += 1
                self.put(encode_ordered_key(new, row), there=True)

    def scan_expired(self, life: Life) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield index rows of the base version whose step has passed, oldest first: their keys and values.

        They come in portions that are not empty. Rows whose lives have not begun but can begin now are included. Each
        row comes once in a task, unless it was given back. Those of keys whose turn is over are left out.
        """
        if self._expired is None:
            end = life.dead_ms >> life.step_bits << life.step_bits
            self._expired = self.portions(INSTANT.pack(max(end, int(life.begins_now))))
        while rows := self._given_back or next(self._expired, []):
            self._given_back = []
            over = self._turns_over
            if open_rows := [row for row in rows if row[0][-HASH_BYTES:] >= over] if over else rows:
                yield open_rows

    def give_back(self, rows: list[tuple[bytes, bytes]]) -> None:
        """Keep rows of the last portion for the next ``scan_expired``."""
        self._given_back = rows

    def count_expired(self, life: Life, most: int, count: Callable[[list[tuple[bytes, bytes]]], int]) -> int:
        """Count the expired rows that ``scan_expired`` has not yielded. After that, it does not yield them.

        ``count`` counts the rows of a portion. The count ends when it reaches ``most``.
        """
        found = 0
        for rows in self.scan_expired(life):
            found += count(rows)
            if found >= most:
                break
        return found

    def settle(self, keys: Packed, stored: Cells, life: Life) -> tuple[Bools, Cells]:
        """Remove index rows ``keys`` whose rows ``stored`` are dead or elsewhere, and move those whose lives begin.

        Return which rows change, and their new values: absent for dead rows.
        """
        stamps = Stamps.of(stored)
        are_there = stamps.instants == numbers_at(keys, 0).astype(np.int64)
        are_dead, begin = are_there & life.are_dead(stamps), are_there & life.are_unbegun(stamps)
        begun = {position: life.begin(stored.values[position]) for position in np.flatnonzero(begin).tolist()}
        for position, row in begun.items():
            self.move(decode_ordered_key(keys[position]), stored.values[position], row)
        self.remove_all(keys.take(~are_there | are_dead))
        change = are_dead | begin
        return change, Cells.of([begun.get(position) for position in np.flatnonzero(change).tolist()])


class _TimedRows(StateRows, Generic[Rows]):
    """Rows of a state with a time to live: they wrap the stored rows, which have stamps."""

    def __init__(self, rows: Rows, life: Life, index: ExpiryIndex) -> None:
        """Update ``index`` as ``rows`` are written."""
        self.number = rows.number
        self._rows: Rows = rows
        self._life, self._index = life, index

    @override
    def flush(self, end: bytes | None) -> Written:
        return self._rows.flush(end)

    @property
    @override
    def change(self) -> int:
        return self._rows.change

    def sweep(self, most: int) -> int:
        """See StateRows. Lives that have not begun may begin."""
        freed = begun_bytes = 0
        for rows in self._index.scan_expired(self._life):
            self._index.give_back(rows[most:])
            keys = Packed.of([key for key, _ in rows[:most]])
            changes = self._settle(keys)
            freed += int((~changes.there).sum())
            begun_bytes += int(changes.values.size.sum())
            most -= len(keys)
            if most <= 0 or begun_bytes >= MAX_BEGUN_BYTES:
                break
        return freed

    def count_expired(self, most: int) -> int:
        """See StateRows."""
        return self._index.count_expired(self._life, most, len)

    @abstractmethod
    def _settle(self, keys: Packed) -> Cells:
        """Free or begin the rows that some index rows name. Return the new rows: absent for those that are freed."""


class TimedKeyRows(_TimedRows[KeyRows]):
    """KeyRows whose rows have a time to live."""

    def get(self, suffix: bytes) -> bytes | None:
        """See KeyRows. None for an expired row."""
        value = self._life.value(self._rows.get(suffix))
        if value is not None and self._life.refreshed_by_reads:
            self.put(suffix, value)
        return value

    def put(self, suffix: bytes, value: bytes | None) -> None:
        """See KeyRows."""
        before = self._rows.get(suffix)
        after = None if value is None else self._life.stamp(value, before)
        self._index.move(suffix, before, after)
        self._rows.put(suffix, after)

    def get_cells(self, suffixes: Suffixes, times: Times | None = None) -> Cells:
        """See KeyRows. Absent where a row has expired. ``times``: of each row; None: those of the call."""
        seen = self._life.filter_seen(self._rows.get_cells(suffixes), times)
        if self._life.refreshed_by_reads:
            alive = np.flatnonzero(seen.there)
            self.put_cells(suffixes.at(alive), seen.take(alive), times and times.take(alive))
        return seen

    def put_cells(self, suffixes: Suffixes, cells: Cells, times: Times | None = None) -> None:
        """See KeyRows. ``times``: of each row; None: those of the call."""
        before = self._rows.get_cells(suffixes)
        after = self._life.stamp_cells(cells, before, times)
        self._index.move_all(suffixes.packed, before, after)
        self._rows.put_cells(suffixes, after)

    def _settle(self, keys: Packed) -> Cells:
        suffixes, places = different(decode_ordered_keys(keys))
        change, changes = self._index.settle(keys, self._rows.get_cells(suffixes).take(places), self._life)
        order = np.argsort(places[change])
        self._rows.put_cells(suffixes.at(places[change][order]), changes.take(order))
        return changes


class TimedEntryRows(_TimedRows[EntryRows]):
    """EntryRows whose rows have a time to live."""

    def get(self, suffix: bytes, entry: bytes) -> bytes | None:
        """See EntryRows. None for an expired row."""
        stored = self._rows.get(suffix, entry)
        value = self._life.value(stored)
        if value is not None and self._life.refreshed_by_reads:
            self._write(suffix, entry, value, stored, there=True)
        return value

    def get_cells(self, at: EntryKeys, times: Times | None = None) -> Cells:
        """See EntryRows. Absent where a row has expired. ``times``: of each row; None: those of the call."""
        seen = self._life.filter_seen(self._rows.get_cells(at), times)
        if self._life.refreshed_by_reads:
            alive = np.flatnonzero(seen.there)
            self.put_cells(at.take(alive), seen.take(alive), times and times.take(alive))
        return seen

    def put(self, suffix: bytes, entry: bytes, value: bytes | None, times: Times | None = None) -> None:
        """See EntryRows."""
        # Only a row that is read tells whether its stamp is later.
        before = self._rows.get(suffix, entry) if self._life.keeps_later else self._rows.peek(suffix, entry)
        self._write(suffix, entry, value, before, there=None, times=times)

    def put_cells(self, at: EntryKeys, cells: Cells, times: Times | None = None) -> None:
        """See EntryRows. ``times``: of each row; None: those of the call."""
        if at.has_twins:  # the old value of a repeated row is what its previous write left
            for place, (suffix, entry, value) in enumerate(at.with_values(cells)):
                self.put(suffix, entry, value, times and times.take(place))
            return
        before = self._rows.get_cells(at)
        after = self._life.stamp_cells(cells, before, times)
        self._index.move_all(at.keys, before, after)
        self._rows.put_cells(at, after)

    def scan(
        self, suffix: bytes, begin: bytes = b"", end: bytes | None = None, times: Times | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """See EntryRows. Expired rows are left out. A read refreshes a row unless it has changed since the call."""
        rows, moment = self._rows.scan(suffix, begin, end), self._rows.moment
        return self._living(suffix, rows, moment, times or self._life.times())

    def _living(
        self, suffix: bytes, rows: Iterator[tuple[bytes, bytes]], moment: Moment, times: Times | None
    ) -> Iterator[tuple[bytes, bytes]]:
        for entry, stored in rows:
            value = self._life.value(stored, times)
            if value is not None:
                if self._life.refreshed_by_reads and self._rows.is_still(suffix, entry, stored, moment):
                    self._write(suffix, entry, value, stored, there=True, times=times)
                yield entry, value

    def remove_all(self, suffix: bytes, begin: bytes = b"") -> None:
        """See EntryRows. Expired rows are removed as well. Index rows stay until they expire."""
        self._rows.remove_all(suffix, begin)

    def _settle(self, keys: Packed) -> Cells:
        at = self._rows.split(decode_ordered_keys(keys))
        change, changes = self._index.settle(keys, self._rows.get_cells(at), self._life)
        self._rows.put_writes(at.take(change), changes, -int((~changes.there).sum()))
        return changes

    def _write(
        self,
        suffix: bytes,
        entry: bytes,
        value: bytes | None,
        before: bytes | None,
        *,
        there: bool | None,
        times: Times | None = None,
    ) -> None:
        after = None if value is None else self._life.stamp(value, before, times)
        self._index.move(suffix + entry, before, after)
        self._rows.put(suffix, entry, after, there=there)
