"""The life of a row, and the stamp that records it.

A row of a state with a time to live begins with a stamp: the byte ``80``, the binary logarithm of its index step, and
when it was last written (or read), in milliseconds, little-endian. Its value follows. In event time, a row that is
written before there is a watermark gets the time 0: it does not expire until a later batch has begun its life.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from pyspark_ckpt.operators.declarations.ttl import Ttl
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
"""The time of a row that was not written since its state has a time to live."""


class Life:
    """The time to live of one state in one batch."""

    def __init__(self, ttl: Ttl, now_ms: int) -> None:
        """``now_ms``: the time of the batch's clock, 0 for a watermark that does not exist yet."""
        self.now_ms = now_ms
        self.dead_ms = now_ms - ttl.duration_ms
        self.begins_late = ttl.clock == "event"
        """Whether there may be rows that were written before there was a watermark."""
        self.begins_now = self.begins_late and now_ms > 0
        """Whether the lives of such rows begin in this batch."""
        self._unbegun_ms = 0 if self.begins_late else -1
        self.refreshed_by_reads = ttl.refresh == "on_read_and_write"
        self._shows_expired = ttl.show_expired
        self.step_bits = count_step_bits(ttl.duration_ms)
        self._stamp = _STAMP.pack(_MARK, self.step_bits, now_ms)
        self.index_instant = max(0, now_ms) >> self.step_bits << self.step_bits
        """The instant under which rows that are written now are in the index."""

    def stamp(self, value: bytes) -> bytes:
        """Return a row whose life begins now."""
        return self._stamp + value

    def stamp_cells(self, cells: Cells) -> Cells:
        """``stamp`` many values; what is absent stays absent."""
        stamped = self.all_stamped(cells.values.take(cells.there))
        return Cells.present(stamped).among(len(cells), cells.there)

    def all_stamped(self, values: Packed) -> Packed:
        """``stamp`` many values."""
        return values.prefix(self._stamp)

    def value(self, stored: bytes | None) -> bytes | None:
        """Return the value that reads see of a row, None if it is absent or hidden as expired."""
        if stored is None or not _is_stamped(stored):  # written before the state had a time to live
            return stored
        return stored[_STAMP.size :] if self._shows_expired or not self.is_dead(stored) else None

    def filter_seen(self, stored: Cells) -> Cells:
        """``value`` of many rows."""
        stamps = Stamps.of(stored)
        values, there = stored.values, stored.there
        if not self._shows_expired:
            there = there & ~self.are_dead(stamps)
        stamp_bytes = np.where(stamps.there, _STAMP.size, 0)
        return Cells(Packed(values.data, values.at + stamp_bytes, (values.size - stamp_bytes) * there), there)

    def are_dead(self, stamps: Stamps) -> Bools:
        """Return which rows have expired."""
        return stamps.there & (self._unbegun_ms < stamps.written_ms) & (stamps.written_ms <= self.dead_ms)

    def are_unbegun(self, stamps: Stamps) -> Bools:
        """Return which rows were written before there was a watermark."""
        return stamps.there & (stamps.written_ms <= self._unbegun_ms)

    def is_dead(self, stored: bytes) -> bool:
        """Return whether a row has expired."""
        return _is_stamped(stored) and self._unbegun_ms < int(_STAMP.unpack_from(stored)[2]) <= self.dead_ms

    def begin(self, stored: bytes) -> bytes | None:
        """Begin the life of a row that was written before there was a watermark. Return it, or None for other rows."""
        if not _is_stamped(stored) or int(_STAMP.unpack_from(stored)[2]) > self._unbegun_ms:
            return None
        return self._stamp + stored[_STAMP.size :]


def count_step_bits(duration_ms: int) -> int:
    """Return the binary logarithm of the step of an expiry index for rows that live this long."""
    return max(0, (duration_ms // STEPS_IN_A_LIFE).bit_length() - 1)


def find_instants(step_bits: int | NDArray[np.int64], written_ms: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the instants under which rows are in the index that were written at these times."""
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

    The time is 0 if its life waits for a watermark, and None if the row was not written since there are lives.
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
