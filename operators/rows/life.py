"""How long a row lives, and the stamp that says so.

A row of a state with a time to live begins with ``80``, the logarithm of its index step, and when it was last
written (or read), in milliseconds, little-endian; then comes its value. What is written before there is a
watermark, in event time, has no instant, which is stored as 0: it lives until a later batch lets its life begin.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from pyspark_ckpt.operators.declarations.ttl import Ttl
from pyspark_ckpt.state_store.columns.cells import Cells
from pyspark_ckpt.state_store.columns.packed import Packed
from pyspark_ckpt.state_store.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bools: TypeAlias = NDArray[np.bool_]

STEPS_IN_A_LIFE = 8
_MARK = 0x80
_STAMP = struct.Struct("<BBq")
MAX_STEP_BITS = 62


class Life:
    """The time to live of one state in one batch."""

    def __init__(self, ttl: Ttl, now_ms: int) -> None:
        """``now_ms``: what the batch's clock says, 0 if it is a watermark that is not there yet."""
        self.now_ms = now_ms
        self.dead_ms = now_ms - ttl.duration_ms
        self.begins_late = ttl.clock == "event"
        """Whether there may be rows that were written before the clock ran."""
        self.begins_now = self.begins_late and now_ms > 0
        """Whether the lives of such rows begin in this batch."""
        self._unbegun_ms = 0 if self.begins_late else -1
        self.refreshed_by_reads = ttl.refresh == "on_read_and_write"
        self._shows_expired = ttl.show_expired
        self.step_bits = max(0, (ttl.duration_ms // STEPS_IN_A_LIFE).bit_length() - 1)
        self._stamp = _STAMP.pack(_MARK, self.step_bits, now_ms)
        self.index_instant = max(0, now_ms) >> self.step_bits << self.step_bits
        """Where rows that live from now on are in the index."""

    def stamp(self, value: bytes) -> bytes:
        """A row that lives from now on."""
        return self._stamp + value

    def stamp_cells(self, cells: Cells) -> Cells:
        """``stamped`` of many values; what is absent stays absent."""
        stamped = self.all_stamped(cells.values.take(cells.there))
        return Cells.present(stamped).among(len(cells), cells.there)

    def all_stamped(self, values: Packed) -> Packed:
        """``stamped`` of many values."""
        return values.prefix(self._stamp)

    def value(self, stored: bytes | None) -> bytes | None:
        """What is seen of a row."""
        if stored is None or not _is_stamped(stored):  # written before the state had a time to live
            return stored
        return stored[_STAMP.size :] if self._shows_expired or not self.is_dead(stored) else None

    def filter_seen(self, stored: Cells) -> Cells:
        """What is seen of many rows."""
        stamps = Stamps.of(stored)
        values, there = stored.values, stored.there
        if not self._shows_expired:
            there = there & ~self.are_dead(stamps)
        stamp_bytes = np.where(stamps.there, _STAMP.size, 0)
        return Cells(Packed(values.data, values.at + stamp_bytes, (values.size - stamp_bytes) * there), there)

    def are_dead(self, stamps: Stamps) -> Bools:
        """Which rows have expired."""
        return stamps.there & (self._unbegun_ms < stamps.written_ms) & (stamps.written_ms <= self.dead_ms)

    def are_unbegun(self, stamps: Stamps) -> Bools:
        """Which rows were written before there was a watermark."""
        return stamps.there & (stamps.written_ms <= self._unbegun_ms)

    def is_dead(self, stored: bytes) -> bool:
        """Whether a row has expired."""
        return _is_stamped(stored) and self._unbegun_ms < int(_STAMP.unpack_from(stored)[2]) <= self.dead_ms

    def begin(self, stored: bytes) -> bytes | None:
        """A row that lives from now on, of one that was written before there was a watermark; None for others."""
        if not _is_stamped(stored) or int(_STAMP.unpack_from(stored)[2]) > self._unbegun_ms:
            return None
        return self._stamp + stored[_STAMP.size :]


def split_stamp(stored: bytes) -> tuple[int | None, bytes]:
    """When a row's life began, None for one whose life has not, and its value. Raises FormatError."""
    if not _is_stamped(stored):
        return None, stored
    written_ms = int(_STAMP.unpack_from(stored)[2])
    return written_ms if written_ms > 0 else None, stored[_STAMP.size :]


def index_instant(stored: bytes | None) -> int | None:
    """Where a row is in the index."""
    if stored is None or not _is_stamped(stored):
        return None
    _, bits, written_ms = _STAMP.unpack_from(stored)
    instant: int = max(0, written_ms) >> bits << bits
    return instant


@dataclass(frozen=True, eq=False)
class Stamps:
    """What many rows begin with: whether a stamp is there, and if so what it says."""

    there: Bools
    bits: NDArray[np.int64]
    written_ms: NDArray[np.int64]

    @classmethod
    def of(cls, stored: Cells) -> Stamps:
        """Those of rows. Raises FormatError for a row that is none."""
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
        """``index_instant`` of each, -1 for none."""
        return np.where(self.there, np.maximum(self.written_ms, 0) >> self.bits << self.bits, -1)


def _is_stamped(stored: bytes) -> bool:
    """Whether a row has a time to live. Raises FormatError for a row that is none."""
    if stored and stored[0] != _MARK:
        return False
    if len(stored) <= _STAMP.size or stored[1] > MAX_STEP_BITS:
        raise FormatError(
            f"A row with a time to live is stored as {stored[: _STAMP.size].hex()!r}, which has no valid stamp."
        )
    return True
