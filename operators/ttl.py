"""Time to live: rows that are not seen any more a while after they were written or read.

A row of a state with a time to live begins with ``80``, the logarithm of its index step, and when it was last
written (or read), in milliseconds, little-endian; its value is behind that. What is written before there is a
watermark, in event time, has no instant, which is stored as 0: it lives until a later batch lets its life begin.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from pyspark_ckpt.operators.durations import milliseconds
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.meta import TimeToLive

if TYPE_CHECKING:
    from numpy.typing import NDArray


STEPS_IN_A_LIFE = 8
_MARK = 0x80
_STAMP = struct.Struct("<BBq")
MOST_STEP_BITS = 62

Refresh: TypeAlias = Literal["on_create_and_write", "on_read_and_write"]
Clock: TypeAlias = Literal["processing", "event"]


@dataclass(frozen=True)
class Ttl:
    """How long rows live. Each list element and each map entry has a life of its own.

    ``refresh``: what begins a life anew. ``clock``: the batch's processing time, or the watermark.
    ``show_expired``: whether rows are seen between their expiry and the batch that frees them.
    """

    duration: str | timedelta
    refresh: Refresh = "on_create_and_write"
    clock: Clock = "processing"
    show_expired: bool = False

    def __post_init__(self) -> None:
        """Raises InvalidInputError."""
        if self.duration_ms < 1:
            raise InvalidInputError(f"A time to live of {self.duration!r} is too short: give a millisecond or more.")
        for field, known in (
            ("refresh", ("on_create_and_write", "on_read_and_write")),
            ("clock", ("processing", "event")),
        ):
            if getattr(self, field) not in known:
                raise InvalidInputError(f"Ttl: {field} is {getattr(self, field)!r}, not one of {known}.")

    @property
    def duration_ms(self) -> int:
        """The duration in milliseconds."""
        return milliseconds(self.duration)

    def stored(self) -> TimeToLive:
        """What a state's descriptor says of it."""
        return TimeToLive(self.duration_ms, self.refresh, self.clock)


class Life:
    """The time to live of one state in one batch."""

    def __init__(self, ttl: Ttl, now_ms: int) -> None:
        """``now_ms``: what the batch's clock says, 0 if it is a watermark that is not there yet."""
        self.now_ms = now_ms
        self.dead_ms = now_ms - ttl.duration_ms
        self.begins_late = ttl.clock == "event"
        """Whether there may be rows that were written before the clock ran."""
        self._unbegun_ms = 0 if self.begins_late else -1
        self.refreshed_by_reads = ttl.refresh == "on_read_and_write"
        self._shows_expired = ttl.show_expired
        self.step_bits = max(0, (ttl.duration_ms // STEPS_IN_A_LIFE).bit_length() - 1)
        self._stamp = _STAMP.pack(_MARK, self.step_bits, now_ms)
        self.index_instant = max(0, now_ms) >> self.step_bits << self.step_bits
        """Where rows that live from now on are in the index."""

    def stamped(self, value: bytes) -> bytes:
        """A row that lives from now on."""
        return self._stamp + value

    def all_stamped(self, values: Sequence[bytes | None]) -> list[bytes | None]:
        """``stamped`` of many values; None stays None."""
        stamp = self._stamp
        return [None if value is None else stamp + value for value in values]

    def value(self, stored: bytes | None) -> bytes | None:
        """What is seen of a row."""
        if stored is None or not _is_stamped(stored):  # written before the state had a time to live
            return stored
        return stored[_STAMP.size :] if self._shows_expired or not self.is_dead(stored) else None

    def values(self, stored: Sequence[bytes | None]) -> list[bytes | None]:
        """What is seen of many rows; without a Python loop where all are of one size."""
        there = [row for row in stored if row is not None]
        rows = _stamped_rows(there)
        if rows is None:
            return list(map(self.value, stored))
        behind = np.ascontiguousarray(rows[:, _STAMP.size :])
        seen: list[bytes | None] = behind.view(f"V{behind.shape[1]}").ravel().tolist()
        if not self._shows_expired:
            written = _written_ms(rows)
            for position in np.flatnonzero((written > self._unbegun_ms) & (written <= self.dead_ms)).tolist():
                seen[position] = None
        if len(there) == len(stored):
            return seen
        rest = iter(seen)
        return [None if row is None else next(rest) for row in stored]

    def is_dead(self, stored: bytes) -> bool:
        """Whether a row has expired."""
        return _is_stamped(stored) and self._unbegun_ms < int(_STAMP.unpack_from(stored)[2]) <= self.dead_ms

    def begun(self, stored: bytes) -> bytes | None:
        """A row that lives from now on, of one that was written before there was a watermark; None for others."""
        if not _is_stamped(stored) or int(_STAMP.unpack_from(stored)[2]) > self._unbegun_ms:
            return None
        return self._stamp + stored[_STAMP.size :]


def unstamped(stored: bytes) -> tuple[int | None, bytes]:
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


def instants_of(stored: Sequence[bytes | None]) -> NDArray[np.int64]:
    """``index_instant`` of many rows, -1 for none; without a Python loop where all are there and of one size."""
    there = [row for row in stored if row is not None]
    rows = _stamped_rows(there) if len(there) == len(stored) else None
    if rows is None:
        found = (index_instant(row) for row in stored)
        return np.fromiter((-1 if instant is None else instant for instant in found), np.int64, len(stored))
    bits = rows[:, 1].astype(np.int64)
    instants: NDArray[np.int64] = np.maximum(_written_ms(rows), 0) >> bits << bits
    return instants


def _stamped_rows(stored: Sequence[bytes]) -> NDArray[np.uint8] | None:
    """Rows with a time to live as a matrix of their bytes; None if there are others, or some of another size."""
    if len(set(map(len, stored))) != 1:
        return None
    rows = np.frombuffer(b"".join(stored), np.uint8).reshape(len(stored), -1)
    if rows.shape[1] <= _STAMP.size or not (rows[:, 0] == _MARK).all():
        return None
    if rows[:, 1].max() > MOST_STEP_BITS:
        _is_stamped(stored[int(rows[:, 1].argmax())])
    return rows


def _is_stamped(stored: bytes) -> bool:
    """Whether a row has a time to live. Raises FormatError for a row that is none."""
    if stored and stored[0] != _MARK:
        return False
    if len(stored) <= _STAMP.size or stored[1] > MOST_STEP_BITS:
        raise FormatError(f"A row with a time to live is stored as {stored[: _STAMP.size].hex()!r}, which is none.")
    return True


def _written_ms(rows: NDArray[np.uint8]) -> NDArray[np.int64]:
    written: NDArray[np.int64] = np.ascontiguousarray(rows[:, 2 : _STAMP.size]).view("<i8").ravel()
    return written
