"""Rows with a time to live, and the index by which those that have expired are found and freed.

The index of a state is a state in key order. It has a row for each row of the other under the instant of its last
write, rounded down to a step: so a row that is written often moves in the index a few times in its life only. Every
batch frees what has expired, oldest first and a bounded number of rows. The index may hold too much, never too
little: a row in it counts only if the row it names has that instant. So nobody counts its rows: to know whether one
is there before it is written would take a look-up for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from pyspark_ckpt.operators.entry_rows import EntryRows
from pyspark_ckpt.operators.key_rows import KeyRows
from pyspark_ckpt.operators.ordered_rows import INSTANT, OrderedRows, ordered_key, row_of
from pyspark_ckpt.operators.state_rows import UNREAD, Written
from pyspark_ckpt.operators.suffixes import Suffixes
from pyspark_ckpt.operators.ttl import Life, index_instant, instants_of
from pyspark_ckpt.state_store.bulk import Cells

Rows = TypeVar("Rows", KeyRows, EntryRows)

LEAST_SWEPT = 10_000
MOST_BEGUN_BYTES = 16 << 20
"""A sweep ends with that: rows whose lives begin are held in memory, unlike those that are freed."""


def index_name(state: str) -> str:
    """The name of the state that is the index of ``state``."""
    return f"{state}#expiry"


class ExpiryIndex(OrderedRows):
    """The index of one state."""

    def move(self, row: bytes, before: bytes | None, after: bytes | None) -> None:
        """A row (suffix and entry) was ``before`` and is ``after`` now; UNREAD: what it was is not known."""
        old = None if before is UNREAD else index_instant(before)
        self._move(row, old, index_instant(after))

    def move_all(self, rows: Sequence[bytes], before: Sequence[bytes | None], after: Sequence[bytes | None]) -> None:
        """``move`` of many rows."""
        old, new = instants_of(before), instants_of(after)
        moved = np.flatnonzero(old != new)
        for position, left, entered in zip(moved.tolist(), old[moved].tolist(), new[moved].tolist(), strict=True):
            self._move(rows[position], None if left < 0 else left, None if entered < 0 else entered)

    def write(self, key: bytes, value: bytes) -> None:
        """Write a row that says more than that it is there."""
        self._written[key] = value

    def write_all(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """``write`` of many rows."""
        self._written.update(zip(keys, values, strict=True))

    def remove_all(self, keys: Iterable[bytes]) -> None:
        """Delete many rows."""
        self._written.update(dict.fromkeys(keys))

    def _move(self, row: bytes, old: int | None, new: int | None) -> None:
        if old != new:
            if old is not None:
                self.put(ordered_key(old, row), there=False)
            if new is not None:
                self.put(ordered_key(new, row), there=True)

    def expired(self, life: Life) -> Iterator[list[tuple[bytes, bytes]]]:
        """Index rows of the base version whose step has passed, oldest first: their keys, and what they say.

        In portions that are not empty.
        """
        return self.portions(INSTANT.pack(max(0, life.dead_ms >> life.step_bits << life.step_bits)))

    def settle(self, keys: Sequence[bytes], stored: Sequence[bytes | None], life: Life) -> dict[int, bytes | None]:
        """Remove those of the index rows ``keys`` whose rows, ``stored``, do not live, and move those that begin to.

        Returns what is to become of rows, by their positions: None of the dead.
        """
        changes: dict[int, bytes | None] = {}
        instants = np.frombuffer(b"".join([key[: INSTANT.size] for key in keys]), ">i8")
        moved_on = instants_of(stored) != instants
        for position, (key, has_moved) in enumerate(zip(keys, moved_on.tolist(), strict=True)):
            row = stored[position]
            if has_moved or row is None:  # the row is gone, or has begun another life
                self.put(key, there=False)
            elif life.is_dead(row):
                self.put(key, there=False)
                changes[position] = None
            elif (begun := life.begun(row)) is not None:
                self.move(row_of(key), row, begun)
                changes[position] = begun
        return changes


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

    def _sweep(self, most: int, settle: Callable[[list[bytes]], dict[int, bytes | None]]) -> int:
        """Free up to ``most`` expired rows, or let their lives begin; returns how many were freed."""
        freed = begun_bytes = 0
        for rows in self._index.expired(self._life):
            keys = [key for key, _ in rows[:most]]
            changes = settle(keys).values()
            begun = [len(row) for row in changes if row is not None]
            freed += len(changes) - len(begun)
            begun_bytes += sum(begun)
            most -= len(keys)
            if most <= 0 or begun_bytes >= MOST_BEGUN_BYTES:
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
        after = None if value is None else self._life.stamped(value)
        self._index.move(suffix, self._rows.get(suffix), after)
        self._rows.put(suffix, after)

    def get_many(self, suffixes: Sequence[bytes]) -> list[bytes | None]:
        """See KeyRows; None for expired rows."""
        values = self._life.values(self._rows.get_many(suffixes))
        if self._life.refreshed_by_reads:
            alive = [n for n, value in enumerate(values) if value is not None]
            self.put_many([suffixes[n] for n in alive], [values[n] for n in alive])
        return values

    def get_cells(self, suffixes: Suffixes) -> Cells:
        """See KeyRows; absent where a row has expired."""
        return Cells.of(self.get_many(suffixes))

    def put_cells(self, suffixes: Suffixes, cells: Cells) -> None:
        """See KeyRows."""
        self.put_many(suffixes, cells.strings())

    def put_many(self, suffixes: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """See KeyRows."""
        after = self._life.all_stamped(values)
        self._index.move_all(suffixes, self._rows.get_many(suffixes), after)
        self._rows.put_many(suffixes, after)

    def sweep(self, most: int) -> int:
        """Free up to ``most`` expired rows; returns how many."""
        return self._sweep(most, self._settle)

    def _settle(self, keys: list[bytes]) -> dict[int, bytes | None]:
        rows = list(map(row_of, keys))
        changes = self._index.settle(keys, self._rows.get_many(rows), self._life)
        for position, row in changes.items():
            self._rows.put(rows[position], row)
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

    def get_many(self, suffixes: Sequence[bytes], entries: Sequence[bytes]) -> list[bytes | None]:
        """See EntryRows; None for expired rows."""
        rows = self._rows.get_many(suffixes, entries)
        values = self._life.values(rows)
        if self._life.refreshed_by_reads:
            for suffix, entry, stored, value in zip(suffixes, entries, rows, values, strict=True):
                if value is not None:
                    self._write(suffix, entry, value, stored, there=True)
        return values

    def put(self, suffix: bytes, entry: bytes, value: bytes | None) -> None:
        """See EntryRows."""
        self._write(suffix, entry, value, self._rows.known(suffix, entry), there=None)

    def put_many(self, suffixes: Sequence[bytes], entries: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """See EntryRows."""
        rows = [suffix + entry for suffix, entry in zip(suffixes, entries, strict=True)]
        if len(set(rows)) < len(rows):  # what is before a row is what its last turn has made of it
            for suffix, entry, value in zip(suffixes, entries, values, strict=True):
                self.put(suffix, entry, value)
            return
        before = self._rows.get_many(suffixes, entries)
        after = self._life.all_stamped(values)
        self._index.move_all(rows, before, after)
        self._rows.put_run(suffixes, entries, after, before.count(None) - after.count(None))

    def scan(self, suffix: bytes, begin: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """See EntryRows; without expired rows."""
        for entry, stored in self._rows.scan(suffix, begin, end):
            value = self._life.value(stored)
            if value is not None:
                if self._life.refreshed_by_reads:
                    self._write(suffix, entry, value, stored, there=True)
                yield entry, value

    def remove_all(self, suffix: bytes, begin: bytes = b"") -> None:
        """See EntryRows; expired rows as well. Their rows in the index stay until their time is over."""
        self._rows.remove_all(suffix, begin)

    def sweep(self, most: int, end_of_key: Callable[[bytes], int]) -> int:
        """Free up to ``most`` expired rows; returns how many. ``end_of_key``: where the suffix ends in a row."""
        return self._sweep(most, partial(self._settle, end_of_key))

    def _settle(self, end_of_key: Callable[[bytes], int], keys: list[bytes]) -> dict[int, bytes | None]:
        rows = list(map(row_of, keys))
        ends = list(map(end_of_key, rows))
        suffixes = [row[:end] for row, end in zip(rows, ends, strict=True)]
        entries = [row[end:] for row, end in zip(rows, ends, strict=True)]
        changes = self._index.settle(keys, self._rows.get_many(suffixes, entries), self._life)
        for position, row in changes.items():
            self._rows.put(suffixes[position], entries[position], row, there=True)
        return changes

    def _write(
        self, suffix: bytes, entry: bytes, value: bytes | None, before: bytes | None, *, there: bool | None
    ) -> None:
        after = None if value is None else self._life.stamped(value)
        self._index.move(suffix + entry, before, after)
        self._rows.put(suffix, entry, after, there=there)
