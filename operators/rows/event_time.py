"""The event times of a program's calls: as of when they read rows with a time to live, and when they write them.

A call for one key has the event time of its rows or of its timer, but never one before the watermark of the previous
batch, up to which expired rows are freed. No call of this batch or a later one could therefore read the rows that a
batch frees.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.encoding.distinct_keys import Keys

    Milliseconds = NDArray[np.int64]

FIRST_MS = 1
"""The earliest event time of a call: 0 is that of a call before there is a watermark."""


class Times(NamedTuple):
    """As of when rows are read, and when they are written: numbers, or arrays with one for each row."""

    reads_ms: Any
    writes_ms: Any

    def take(self, which: Any) -> Times:
        """Return those of some rows, or of one."""
        return Times(self.reads_ms[which], self.writes_ms[which])


class EventTime:
    """The event time of the call that is being made. Calls without one have that of the watermark."""

    def __init__(self, watermark_ms: int, passed_ms: int | None = None) -> None:
        """``watermark_ms``: of the batch. ``passed_ms``: no call is for an earlier time; None for ``watermark_ms``."""
        self.watermark_ms = max(0, watermark_ms)
        self.passed_ms = self.watermark_ms if passed_ms is None else max(0, passed_ms)
        self._now = self._no_call = Times(self.watermark_ms, self.watermark_ms)
        self._of_call: object = None
        self._is_in_rows = self._is_used_in_rows = False
        self._keys: Keys | None = None
        self._index: NDArray[Any] | None = None
        self._of_keys = self._of_rows = self._no_call

    def use(self) -> Times:
        """Return the times of a read or a write that is made now."""
        self._is_used_in_rows |= self._is_in_rows
        return self._now

    def begin(self, reads_ms: int, writes_ms: int, call: object = None) -> None:
        """Begin a call for one key. ``call``: what it iterates over, see ``take``."""
        self._now, self._of_call = Times(reads_ms, writes_ms), call
        self._is_in_rows = self._is_used_in_rows = False

    def extend(self, first_ms: int, last_ms: int) -> None:
        """Note that a call for one key also has rows of these event times."""
        self._now = Times(min(self._now.reads_ms, first_ms), max(self._now.writes_ms, last_ms))

    def begin_keys(self, keys: Keys, index: NDArray[Any], times_ms: Milliseconds) -> None:
        """Begin a call for many keys. ``index``: the position of each row's key; ``times_ms``: of each row."""
        self._keys, self._index = keys, index
        first = np.full(len(keys), np.iinfo(np.int64).max)
        last = np.zeros(len(keys), np.int64)
        np.minimum.at(first, index, times_ms)
        np.maximum.at(last, index, times_ms)
        self._of_keys, self._of_rows = Times(first, last), Times(times_ms, times_ms)

    def end(self) -> None:
        """End the call. What follows has no event time of its own."""
        self.begin(self.watermark_ms, self.watermark_ms)
        self._keys = self._index = None

    def take(self, call: object, at_ms: int) -> None:
        """Go to a row of a call: from now on, reads and writes have its time."""
        if self._of_call is call:
            self._now, self._is_in_rows = Times(at_ms, at_ms), True

    def leave_rows(self, call: object, whole: Times) -> None:
        """Note that the rows of a call are left. If no state was used meanwhile, the call has the ``whole`` times."""
        if self._of_call is call:
            self._is_in_rows = False
            if not self._is_used_in_rows:
                self._now = whole

    @contextmanager
    def at(self, at_ms: int) -> Iterator[None]:
        """Read and write as of an instant within."""
        before, self._now = self._now, Times(at_ms, at_ms)
        try:
            yield
        finally:
            self._now = before

    def of_keys(self, keys: Keys) -> Times:
        """Return the times of many keys: a read has the time of the key's first row, a write of its last row."""
        if self._keys is None:
            return Times(*(np.full(len(keys), at_ms) for at_ms in self.use()))
        if keys.suffixes is self._keys.suffixes:
            return self._of_keys
        places = {suffix: place for place, suffix in enumerate(self._keys.suffixes)}
        found = np.array([places.get(suffix, -1) for suffix in keys.suffixes], np.int64)
        known = found >= 0
        return Times(*(np.where(known, each[found], self.watermark_ms) for each in self._of_keys))

    def of_rows(self, keys: Keys, index: NDArray[Any]) -> Times:
        """Return the times of many rows, given the position of each one's key.

        If ``index`` is the one that the call was given, each row has its own time; otherwise the time of its key.
        """
        return self._of_rows if index is self._index else self.of_keys(keys).take(index)


class RowsInTime(list[Any]):
    """The rows of a call for one key. During iteration, the current row gives the event time."""

    def __init__(self, rows: list[Any], times_ms: list[int], time: EventTime) -> None:
        """``times_ms``: of each row, never falling. Begins the call."""
        super().__init__(rows)
        self._times_ms, self._time = times_ms, time
        self._whole = Times(times_ms[0], times_ms[-1])
        time.begin(*self._whole, self)

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows."""
        try:
            for row, at_ms in zip(super().__iter__(), self._times_ms):  # noqa: B905 - a program may change the list
                self._time.take(self, at_ms)
                yield row
        finally:
            self._time.leave_rows(self, self._whole)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy as a plain list."""
        return list, (list(self),)
