"""The life of a row, and the stamp that records it.

A row of a state with a time to live begins with a stamp: the byte ``80``, the binary logarithm of its index step, and
when it was last written (or read), in milliseconds, little-endian. Its value follows. In event time, a row that is
written before there is a watermark, by a call that has no event time, gets the time 0: it does not expire until a later
batch has begun its life.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from typing_extensions import override

from pyspark_ckpt.operators.declarations.ttl import Ttl
from pyspark_ckpt.operators.rows.event_time import EventTime, Times
from pyspark_ckpt.state_store.arrays.cells import Cells
from pyspark_ckpt.state_store.arrays.packed import Packed
from pyspark_ckpt.state_store.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bools: TypeAlias = NDArray[np.bool_]

STEPS_IN_A_LIFE = 8
_MARK = 0x80
_STAMP = struct.Struct("<BBq")
_STAMPS = np.dtype([("mark", "u1"), ("step_bits", "u1"), ("written_ms", "<i8")])
MAX_STEP_BITS = 62
NEVER = -1
"""The time of a row that was last written before its state had a time to live."""


class Life:
    """The time to live of one state in one batch. ``EventLife`` is that of event time, in which calls differ."""

    keeps_later = False
    """Whether a write keeps the stamp that a row has if it is later than the write's own."""

    def __init__(self, ttl: Ttl, now_ms: int) -> None:
        """``now_ms``: the time of the batch's clock, 0 for a watermark that does not exist yet."""
        self._duration_ms = ttl.duration_ms
        self.begins_late = ttl.clock == "event"
        """Whether there may be rows that were written before there was a watermark."""
        self.begins_now = self.begins_late and now_ms > 0
        """Whether the lives of such rows begin in this batch."""
        self._unbegun_ms = 0 if self.begins_late else -1
        self.refreshed_by_reads = ttl.refresh == "on_read_and_write"
        self._shows_expired = ttl.show_expired
        self.step_bits = count_step_bits(ttl.duration_ms)
        self.move(now_ms)

    def move(self, now_ms: int) -> None:
        """Go on to another time of the clock."""
        self.now_ms = now_ms
        self.dead_ms = now_ms - self._duration_ms
        self._stamp = _STAMP.pack(_MARK, self.step_bits, now_ms)
        self.index_instant = max(0, now_ms) >> self.step_bits << self.step_bits
        """The index instant of rows that are written now."""

    def times(self) -> Times | None:
        """Return the times of a call, for reads that end later; None if all calls of the batch have the same."""
        return None

    def stamp(self, value: bytes, _before: bytes | None = None, _times: Times | None = None) -> bytes:
        """Return a row whose life begins now. ``_before``: the row that it replaces."""
        return self._stamp + value

    def stamp_cells(self, cells: Cells, _before: Cells, _times: Times | None = None) -> Cells:
        """``stamp`` many values; what is absent stays absent."""
        stamped = self.all_stamped(cells.values.take(cells.there))
        return Cells.present(stamped).among(len(cells), cells.there)

    def all_stamped(self, values: Packed, _times: Times | None = None) -> Packed:
        """``stamp`` many values that replace no rows."""
        return values.prefix(self._stamp)

    def stamp_each(self, values: Sequence[bytes], _times: Times | None = None) -> list[bytes]:
        """``all_stamped`` for values that are separate objects."""
        return list(map(self._stamp.__add__, values))

    def runs(self, count: int, _times: Times | None = None) -> Iterable[tuple[int, int, int]]:
        """Return the index instants of ``count`` rows that are written now, as runs of rows.

        Each run is an instant, and where its rows begin and end.
        """
        return ((self.index_instant, 0, count),)

    def instants_of(self, counts: NDArray[np.int64], _times: Times | None = None) -> NDArray[np.int64] | None:
        """Return the index instant of each list that gets ``counts`` elements now; None if one has several instants."""
        return np.full(len(counts), self.index_instant)

    def value(self, stored: bytes | None, _times: Times | None = None) -> bytes | None:
        """Return the value that reads see of a row, None if it is absent or hidden as expired."""
        if stored is None or not _is_stamped(stored):  # written before the state had a time to live
            return stored
        return stored[_STAMP.size :] if self._shows_expired or not self.is_dead(stored) else None

    def filter_seen(self, stored: Cells, times: Times | None = None) -> Cells:
        """``value`` of many rows."""
        stamps = Stamps.of(stored)
        values, there = stored.values, stored.there
        if not self._shows_expired:
            there = there & ~self._are_hidden(stamps, times)
        stamp_bytes = np.where(stamps.there, _STAMP.size, 0)
        return Cells(Packed(values.data, values.at + stamp_bytes, (values.size - stamp_bytes) * there), there)

    def _are_hidden(self, stamps: Stamps, _times: Times | None) -> Bools:
        """Return which rows have expired for a read."""
        return self.are_dead(stamps)

    def are_dead(self, stamps: Stamps) -> Bools:
        """Return which rows have expired for every read of this batch and of later ones."""
        return stamps.there & (self._unbegun_ms < stamps.written_ms) & (stamps.written_ms <= self.dead_ms)

    def are_unbegun(self, stamps: Stamps) -> Bools:
        """Return which rows were written before there was a watermark."""
        return stamps.there & (stamps.written_ms <= self._unbegun_ms)

    def is_dead(self, stored: bytes) -> bool:
        """Return whether a row has expired."""
        return _is_stamped(stored) and self._unbegun_ms < int(_STAMP.unpack_from(stored)[2]) <= self.dead_ms

    def begin(self, stored: bytes) -> bytes | None:
        """Begin the life of a row that has the time 0, at the watermark. Return it, or None for other rows."""
        if not _is_stamped(stored) or int(_STAMP.unpack_from(stored)[2]) > self._unbegun_ms:
            return None
        return self._stamp + stored[_STAMP.size :]


class EventLife(Life):
    """The time to live of a state in event time: a call reads and writes as of the time of its rows."""

    keeps_later = True

    def __init__(self, ttl: Ttl, time: EventTime) -> None:
        """``time``: that of the calls. Lives that have not begun begin at its watermark."""
        super().__init__(ttl, time.watermark_ms)
        self._time, self._duration_ms = time, ttl.duration_ms
        self.dead_ms = time.passed_ms - ttl.duration_ms

    @override
    def times(self) -> Times:
        return self._time.use()

    @override
    def stamp(self, value: bytes, _before: bytes | None = None, _times: Times | None = None) -> bytes:
        written_ms = (_times or self._time.use()).writes_ms
        if _before and _before[0] == _MARK:
            written_ms = max(written_ms, int(_STAMP.unpack_from(_before)[2]))
        return _STAMP.pack(_MARK, self.step_bits, written_ms) + value

    @override
    def stamp_cells(self, cells: Cells, _before: Cells, _times: Times | None = None) -> Cells:
        there = cells.there
        written_ms = np.maximum(self._writing_ms(len(cells), _times), Stamps.of(_before).written_ms)
        stamped = stamp_all(cells.values.take(there), self.step_bits, written_ms[there])
        return Cells.present(stamped).among(len(cells), there)

    @override
    def all_stamped(self, values: Packed, _times: Times | None = None) -> Packed:
        return stamp_all(values, self.step_bits, self._writing_ms(len(values), _times))

    @override
    def stamp_each(self, values: Sequence[bytes], _times: Times | None = None) -> list[bytes]:
        if _times is None or np.ndim(_times.writes_ms) == 0:
            stamp = self.stamp(b"", None, _times)
            return list(map(stamp.__add__, values))
        return self.all_stamped(Packed.of(values), _times).strings()

    @override
    def runs(self, count: int, _times: Times | None = None) -> Iterable[tuple[int, int, int]]:
        written_ms = (_times or self._time.use()).writes_ms
        if isinstance(written_ms, int):
            return ((max(0, written_ms) >> self.step_bits << self.step_bits, 0, count),)
        instants = find_instants(self.step_bits, np.broadcast_to(np.asarray(written_ms, np.int64), count))
        ends = np.append(np.flatnonzero(instants[1:] != instants[:-1]) + 1, count).tolist()
        return [(int(instants[begin]), begin, end) for begin, end in pairwise([0, *ends])]

    @override
    def instants_of(self, counts: NDArray[np.int64], _times: Times | None = None) -> NDArray[np.int64] | None:
        instants = find_instants(self.step_bits, self._writing_ms(int(counts.sum()), _times))
        of_lists: NDArray[np.int64] = instants[np.cumsum(counts) - counts]
        return of_lists if (np.repeat(of_lists, counts) == instants).all() else None

    @override
    def value(self, stored: bytes | None, _times: Times | None = None) -> bytes | None:
        if stored is None or not _is_stamped(stored):
            return stored
        if not self._shows_expired:
            reads_ms = (_times or self._time.use()).reads_ms
            if self._unbegun_ms < int(_STAMP.unpack_from(stored)[2]) <= reads_ms - self._duration_ms:
                return None
        return stored[_STAMP.size :]

    @override
    def _are_hidden(self, stamps: Stamps, _times: Times | None) -> Bools:
        reads_ms = (_times or self._time.use()).reads_ms
        written_ms = stamps.written_ms
        hidden: Bools = stamps.there & (self._unbegun_ms < written_ms) & (written_ms <= reads_ms - self._duration_ms)
        return hidden

    def _writing_ms(self, count: int, times: Times | None) -> NDArray[np.int64]:
        return np.broadcast_to(np.asarray((times or self._time.use()).writes_ms, np.int64), count)


def count_step_bits(duration_ms: int) -> int:
    """Return the binary logarithm of the step of an expiry index for rows that live this long."""
    return max(0, (duration_ms // STEPS_IN_A_LIFE).bit_length() - 1)


def find_instants(step_bits: int | NDArray[np.int64], written_ms: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index instants of rows that were written at these times."""
    instants: NDArray[np.int64] = np.maximum(written_ms, 0) >> step_bits << step_bits
    return instants


def stamp_all(values: Packed, step_bits: int, written_ms: NDArray[np.int64]) -> Packed:
    """Return rows, each with the stamp of a time of its own; a row whose time is NEVER gets no stamp."""
    stamps = np.empty(len(values), _STAMPS)
    stamps["mark"], stamps["step_bits"], stamps["written_ms"] = _MARK, step_bits, written_ms
    stamped = values.behind_heads(stamps.view(np.uint8).reshape(len(values), _STAMP.size))
    stamp_bytes = np.where(written_ms == NEVER, _STAMP.size, 0)
    return Packed(stamped.data, stamped.at + stamp_bytes, stamped.size - stamp_bytes)


def split_stamp(stored: bytes) -> tuple[int | None, bytes]:
    """Return when a row's life began and its value. Raises FormatError.

    The time is 0 if its life waits for a watermark, and None if the row was last written before there were lives.
    """
    if not _is_stamped(stored):
        return None, stored
    return max(0, int(_STAMP.unpack_from(stored)[2])), stored[_STAMP.size :]


def index_instant(stored: bytes | None) -> int | None:
    """Return the instant under which a row is in the index, None if it has no stamp. Raises FormatError."""
    if stored is None or not _is_stamped(stored):
        return None
    _, bits, written_ms = _STAMP.unpack_from(stored)
    instant: int = max(0, written_ms) >> bits << bits
    return instant


@dataclass(frozen=True, eq=False)
class Stamps:
    """The stamps of many rows: whether each row has one, and if so its contents."""

    there: Bools
    bits: NDArray[np.int64]
    written_ms: NDArray[np.int64]

    @classmethod
    def of(cls, stored: Cells) -> Stamps:
        """Read the stamps of rows. Raises FormatError for an invalid row."""
        count, values = len(stored), stored.values
        bits, written_ms = np.zeros(count, np.int64), np.zeros(count, np.int64)
        there = stored.there.copy()
        has_bytes = there & (values.size > 0)
        there[has_bytes] = values.data[values.at[has_bytes]] == _MARK
        short = np.flatnonzero(there & (values.size <= _STAMP.size))
        if len(short):
            _is_stamped(values[int(short[0])])
        rows = values.take(there).matrix(_STAMP.size)
        bits[there] = rows[:, 1]
        wrong = np.flatnonzero(bits > MAX_STEP_BITS)
        if len(wrong):
            _is_stamped(values[int(wrong[0])])
        written_ms[there] = np.ascontiguousarray(rows[:, 2:]).view("<i8").ravel()
        return cls(there, bits, written_ms)

    @property
    def instants(self) -> NDArray[np.int64]:
        """``index_instant`` of each, -1 without a stamp."""
        return np.where(self.there, find_instants(self.bits, self.written_ms), -1)


def _is_stamped(stored: bytes) -> bool:
    """Return whether a row has a stamp. Raises FormatError for an invalid row."""
    if stored and stored[0] != _MARK:
        return False
    if len(stored) <= _STAMP.size or stored[1] > MAX_STEP_BITS:
        raise FormatError(
            f"A row with a time to live is stored as {stored[: _STAMP.size].hex()!r}, which has no valid stamp."
        )
    return True
