"""Rows with a time to live, and the index by which those that have expired are found and freed.

The index of a state is a state in key order. It has a row for each row of the other under the instant of its last
write, rounded down to a step: so a row that is written often moves in the index a few times in its life only. Every
batch frees what has expired, oldest first and a bounded number of rows. The index may hold too much, never too
little: a row in it counts only if the row it names has that instant.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pyspark_ckpt.operators.state_rows import UNREAD, EntryRows, KeyRows, RowCount
from pyspark_ckpt.operators.ttl import Life, index_instant, instants_of
from pyspark_ckpt.state_store.keys import HASH_BYTES, state_head

if TYPE_CHECKING:
    from pyspark_ckpt.operators.worker_session import WorkerSession

LEAST_SWEPT = 10_000
_TIME = struct.Struct(">Q")
_THERE = b"\x01"


def index_name(state: str) -> str:
    """The name of the state that is the index of ``state``."""
    return f"{state}#expiry"


class ExpiryIndex:
    """The index of one state: rows ``instant · key and entry · hash``."""

    def __init__(self, number: int, session: WorkerSession) -> None:
        """Read and write state ``number``, which is in key order."""
        self.number = number
        self._head = state_head(number)
        self._session = session
        self._written: dict[bytes, bytes | None] = {}
        self._count = RowCount(session)

    def move(self, row: bytes, before: bytes | None, after: bytes | None) -> None:
        """A row (suffix and entry) was ``before`` and is ``after`` now; UNREAD: what it was is not known."""
        new = index_instant(after)
        if before is UNREAD:
            if new is not None:
                self._put(self._key(new, row), _THERE, was_there=None)
            return
        old = index_instant(before)
        if old == new:
            return
        if old is not None:
            self._put(self._key(old, row), None, was_there=True)
        if new is not None:
            self._put(self._key(new, row), _THERE, was_there=None)

    def expired(self, life: Life, most: int) -> Iterator[tuple[bytes, bytes]]:
        """Index rows of the base version whose step has passed, oldest first, with the rows they name."""
        end = _TIME.pack(max(0, life.dead_ms >> life.step_bits << life.step_bits))
        for count, (key, _) in enumerate(self._session.scan(self._head, b"", end)):
            if count == most:
                return
            if key not in self._written:
                yield key, key[-HASH_BYTES:] + key[_TIME.size : -HASH_BYTES]

    @staticmethod
    def instant(key: bytes) -> int:
        """The instant of an index row."""
        return int(_TIME.unpack_from(key)[0])

    def drop(self, key: bytes) -> None:
        """Remove an index row of the base version."""
        self._put(key, None, was_there=True)

    @property
    def change(self) -> int:
        """How many index rows more there are than in the base version."""
        return self._count.resolved()

    def flush(self, _end: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        """Everything written, in stored order; it is forgotten."""
        self._count.resolved()
        written, self._written = self._written, {}
        return ((self._head + key, written[key]) for key in sorted(written))

    def _key(self, instant: int, row: bytes) -> bytes:
        return _TIME.pack(instant) + row[HASH_BYTES:] + row[:HASH_BYTES]

    def _put(self, key: bytes, value: bytes | None, *, was_there: bool | None) -> None:
        if key in self._written:
            was_there = self._written[key] is not None
        elif was_there is None:
            self._count.unread(self._head + key)
        self._count.add((value is not None) - bool(was_there))
        self._written[key] = value


class TimedKeyRows:
    """KeyRows whose rows have a time to live."""

    def __init__(self, rows: KeyRows, life: Life, index: ExpiryIndex) -> None:
        """Keep ``index`` as ``rows`` are written."""
        self._rows, self._life, self._index = rows, life, index
        self.flush = rows.flush

    @property
    def change(self) -> int:
        """See KeyRows."""
        return self._rows.change

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

    def put_many(self, suffixes: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """See KeyRows."""
        after = [None if value is None else self._life.stamped(value) for value in values]
        before = self._rows.get_many(suffixes)
        for position in np.flatnonzero(instants_of(before) != instants_of(after)).tolist():
            self._index.move(suffixes[position], before[position], after[position])
        self._rows.put_many(suffixes, after)

    def sweep(self, most: int) -> Sequence[bytes]:
        """Free up to ``most`` expired rows; returns whose."""
        return _sweep(self._index, self._life, most, self._rows.get_many, lambda row: self._rows.put(row, None))


class TimedEntryRows:
    """EntryRows whose rows have a time to live."""

    def __init__(self, rows: EntryRows, life: Life, index: ExpiryIndex) -> None:
        """Keep ``index`` as ``rows`` are written."""
        self._rows, self._life, self._index = rows, life, index
        self.flush = rows.flush

    @property
    def change(self) -> int:
        """See EntryRows."""
        return self._rows.change

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

    def put(self, suffix: bytes, entry: bytes, value: bytes | None, *, there: bool | None = None) -> None:
        """See EntryRows."""
        before = None if there is False else self._rows.written(suffix, entry)
        self._write(suffix, entry, value, before, there=there)

    def scan(self, suffix: bytes, begin: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """See EntryRows; without expired rows."""
        for entry, stored in self._rows.scan(suffix, begin, end):
            value = self._life.value(stored)
            if value is not None:
                if self._life.refreshed_by_reads:
                    self._write(suffix, entry, value, stored, there=True)
                yield entry, value

    def has_rows(self, suffix: bytes, begin: bytes = b"") -> bool:
        """See EntryRows; expired rows count."""
        return self._rows.has_rows(suffix, begin)

    def remove_all(self, suffix: bytes, begin: bytes = b"") -> None:
        """See EntryRows; expired rows as well."""
        for entry, stored in list(self._rows.scan(suffix, begin)):
            self._write(suffix, entry, None, stored, there=True)

    def sweep(self, most: int, end_of_key: Callable[[bytes], int]) -> Sequence[bytes]:
        """Free up to ``most`` expired rows; returns whose. ``end_of_key``: where the suffix ends in a row."""

        def get_many(rows: Sequence[bytes]) -> list[bytes | None]:
            ends = list(map(end_of_key, rows))
            return self._rows.get_many(
                [row[:end] for row, end in zip(rows, ends, strict=True)],
                [row[end:] for row, end in zip(rows, ends, strict=True)],
            )

        def free(row: bytes) -> None:
            end = end_of_key(row)
            self._rows.put(row[:end], row[end:], None, there=True)

        return _sweep(self._index, self._life, most, get_many, free)

    def _write(
        self, suffix: bytes, entry: bytes, value: bytes | None, before: bytes | None, *, there: bool | None
    ) -> None:
        after = None if value is None else self._life.stamped(value)
        self._index.move(suffix + entry, before, after)
        self._rows.put(suffix, entry, after, there=there)


def _sweep(
    index: ExpiryIndex,
    life: Life,
    most: int,
    get_many: Callable[[Sequence[bytes]], list[bytes | None]],
    free: Callable[[bytes], None],
) -> list[bytes]:
    freed = []
    found = list(index.expired(life, most))
    for (key, row), stored in zip(found, get_many([row for _, row in found]), strict=True):
        if stored is None or index_instant(stored) != index.instant(key):
            index.drop(key)  # the row is gone, or has begun another life
        elif life.is_dead(stored):
            index.drop(key)
            free(row)
            freed.append(row)
    return freed
