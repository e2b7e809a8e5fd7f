"""The rows of one state in one task: what the task has written, on top of what the base version has.

Rows are read for many keys at once. Written rows stay in memory until the session stages them, sorted. A key is given
as its *suffix*, its hash and bytes: the part of a row's key after the number of the state.

All kinds of rows are a StateRows, through which a task stages, counts and frees them::

    KeyRows            one row for each key (values, reduced values, aggregates)
    EntryRows          any number of rows for each key (maps)
    ListRows           the elements of lists, and a head for each list
    TimerRows          rows in the order of time
    PartitionListRows  the elements of a list of the partition
    BroadcastRows      the entries of a map that is the same in all partitions

With a time to live, ``TimedKeyRows`` and ``TimedEntryRows`` wrap the first two, put a stamp into each row, and keep an
ExpiryIndex. ``TimedListRows`` is a ListRows that does the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from pyspark_ckpt.operators.rows.base import BaseRows
from pyspark_ckpt.state_store.arrays.writes import Writes

ROW_BYTES = 256
"""Approximate memory of a row that is written on its own, without its value."""
ARRAYS_BYTES = 40
"""Memory of a row in columns or arrays, without its key and value: where these begin, and their sizes."""

FEWER = 4
"""A call is small if this many times its rows are held in columns, all of which it searches."""
MAX_SMALL_CALLS = 8
"""Some small calls cost less than to convert all rows."""

Written: TypeAlias = "Iterator[tuple[bytes, bytes | None]] | Writes"
"""Rows in stored order; the value is None if the row is deleted."""


class Staged(ABC):
    """Rows that a task has written, on their way to the store."""

    number: int
    """The number of their state."""

    @abstractmethod
    def flush(self, end: bytes | None) -> Written:
        """Return and forget what was written for keys below ``end`` (None: all keys), in stored order.

        The turn of these keys is over: what was read for them is forgotten, too.
        """

    @property
    def held_bytes(self) -> int:
        """Memory of what stays here although the turn of all keys so far is over."""
        return 0

    def spill(self) -> Written:
        """Return and forget what can be staged before the turn of a key is over, because the session finds it again."""
        return self.flush(None)


class StateRows(Staged):
    """The rows of a declared state."""

    @property
    @abstractmethod
    def change(self) -> int:
        """The change of the row count since the base version. It is right once everything has been flushed."""

    def sweep(self, _most: int) -> int:
        """Free up to ``_most`` expired rows. Return how many. Rows without a time to live do not expire.

        A later call in the task goes on from there. Rows of keys whose turn is over are left to the next batch.
        """
        return 0

    def count_expired(self, _most: int) -> int:
        """Return how many expired rows are left after the last sweep of a task, counted until ``_most`` are found."""
        return 0


def sort_rows(head: bytes, rows: Mapping[bytes, bytes | None]) -> Iterator[tuple[bytes, bytes | None]]:
    """Return ``rows`` in stored order, with ``head`` before each key."""
    keys = sorted(rows)
    return zip(map(head.__add__, keys), map(rows.__getitem__, keys), strict=True)


class FormChoice:
    """Tells when rows that are held in columns are better held by key: once many small calls have searched them."""

    def __init__(self) -> None:
        """Begin without calls."""
        self._small_calls = 0

    def prefers_rows(self, count: int, held: int) -> bool:
        """Return whether to convert the ``held`` rows before a call for ``count`` of any rows."""
        if count * FEWER < held:
            self._small_calls += 1
        if self._small_calls <= MAX_SMALL_CALLS:
            return False
        self._small_calls = 0
        return True


class RowCount:
    """The exact change of a state's row count since the base version, without a read per write."""

    def __init__(self, session: BaseRows) -> None:
        """Begin with no change."""
        self._session = session
        self._change = 0
        self._unread: list[bytes] = []

    def add(self, change: int) -> None:
        """Count added rows. A row that has not been read counts as absent before."""
        self._change += change

    def unread(self, key: bytes) -> None:
        """Note a written row that may or may not be in the base version: it is looked up later, with others."""
        self._unread.append(key)

    def resolve(self) -> int:
        """Return the change, after all look-ups that it needs."""
        if self._unread:
            self._unread.sort()
            self._change -= len(self._unread) - self._session.get_many(self._unread).count(None)
            self._unread = []
        return self._change
