"""Keys of timer rows: they sort by the exact instant that was registered, in microseconds, and decode to it.

A row is ``instant · key and namespace · hash``. The instant is whole milliseconds since 1970, plus 2^63, in eight
bytes. If the instant has further microseconds, the byte 2 and their number in two bytes follow. After the instant comes
the key, which begins with 0 or 1. A row without the byte 2 is therefore of a whole millisecond, and sorts before the
rows of the same millisecond that have it.

An earlier release rounded instants up to a millisecond and gave its rows the value ROUNDED. Such a row may stand for
any microsecond of the millisecond before its instant.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from typing_extensions import override

from pyspark_ckpt.operators.declarations.timers import MICROSECONDS, round_up_ms
from pyspark_ckpt.operators.rows.base import BaseRows
from pyspark_ckpt.operators.rows.ordered_rows import INSTANT, CountedRows, encode_ordered_keys
from pyspark_ckpt.operators.rows.state_rows import Written
from pyspark_ckpt.state_store.arrays.packed import Packed
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.keys import HASH_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROUNDED, EXACT = b"\x01", b"\x02"
"""The values of rows with a rounded and with an exact instant."""
_ZERO = 1 << 63
_LAST = (1 << 64) - 1
_REST = struct.Struct(">BH")
_HAS_REST = 2


class TimerRow(NamedTuple):
    """The contents of a row's key: the instant, in microseconds since 1970, and ``row``: hash, key and namespace."""

    at_us: int
    row: bytes


def timer_key(at_us: int, row: bytes) -> bytes:
    """Return the key of a timer for ``row``, which begins with its hash."""
    at_ms, rest = divmod(at_us, MICROSECONDS)
    instant = INSTANT.pack(at_ms + _ZERO)
    if rest:
        instant += _REST.pack(_HAS_REST, rest)
    return instant + row[HASH_BYTES:] + row[:HASH_BYTES]


def encode_timer_keys(at_us: NDArray[np.int64], rows: Packed) -> Packed:
    """``timer_key`` for many rows, each with its instant."""
    if (at_us % MICROSECONDS).any():
        return Packed.of(list(map(timer_key, at_us.tolist(), rows.strings())))
    return encode_ordered_keys((at_us // MICROSECONDS).view(np.uint64) + np.uint64(_ZERO), rows)


def encode_rounded_key(at_us: int, row: bytes) -> bytes:
    """Return the key under which an earlier release stored the timer."""
    return timer_key(round_up_ms(at_us) * MICROSECONDS, row)


def read_timer_key(key: bytes) -> TimerRow:
    """Decode what ``timer_key`` returns. Raises FormatError for a key without an instant or a hash."""
    at_us, begin = read_instant(key)
    if len(key) < begin + HASH_BYTES:
        raise FormatError(f"A timer is stored under {key.hex()!r}, which has no hash.")
    return TimerRow(at_us, key[-HASH_BYTES:] + key[begin:-HASH_BYTES])


def read_instant(key: bytes) -> tuple[int, int]:
    """Return the instant that a key begins with, in microseconds since 1970, and where it ends. Raises FormatError."""
    if len(key) < INSTANT.size:
        raise FormatError(f"A timer is stored under {key.hex()!r}, which has no instant.")
    at_us = (int(INSTANT.unpack_from(key)[0]) - _ZERO) * MICROSECONDS
    if len(key) == INSTANT.size or key[INSTANT.size] != _HAS_REST:
        return at_us, INSTANT.size
    end = INSTANT.size + _REST.size
    rest = int(_REST.unpack_from(key, INSTANT.size)[1]) if len(key) >= end else 0
    if not 0 < rest < MICROSECONDS:
        raise FormatError(f"A timer is stored under {key[:end].hex()!r}, whose microseconds are not 1 to 999.")
    return at_us + rest, end


def end_of_ms(at_ms: int) -> bytes:
    """Return the bound after all rows up to a whole millisecond and before all later rows."""
    return INSTANT.pack(min(max(at_ms + _ZERO, 0), _LAST)) + bytes([_HAS_REST])


class TimerRows(CountedRows):
    """The timers of one declaration."""

    def __init__(self, number: int, session: BaseRows, now_ms: int, fired_ms: int | None) -> None:
        """Read and write state ``number``. All timers up to ``fired_ms`` have fired; those up to ``now_ms`` are due."""
        super().__init__(number, session, EXACT)
        self._now_ms = now_ms
        self._now_us = now_ms * MICROSECONDS
        self._fired_ms = fired_ms
        self._due: list[bytes] = []
        self._later: list[bytes] | None = None
        """Keys that this task has registered and that were not due then, if the clock moves on within the batch."""
        self._earliest: bytes | None = None
        self._replaced: set[bytes] = set()
        """Keys under which an earlier release may have stored instants that were registered or deleted since."""

    def write(self, at_us: int, row: bytes, *, there: bool) -> None:
        """Register or delete the timer for ``row`` (hash, key and namespace) at an instant in microseconds."""
        key = timer_key(at_us, row)
        self.put(key, there=there)
        if at_us % MICROSECONDS:
            self._replaced.add(encode_rounded_key(at_us, row))
        if there and at_us <= self._now_us:
            heappush(self._due, key)
        elif there and self._later is not None:
            heappush(self._later, key)

    def expect_moves(self) -> None:
        """From now on, note what is registered for later, for ``move``."""
        self._later = []

    def move(self, now_ms: int) -> None:
        """Go on to a later time of the clock. The timers up to it count as registered now, whoever registered them."""
        end = end_of_ms(now_ms)
        for key in self.scan(end_of_ms(self._now_ms), end):
            heappush(self._due, key)
        while self._later and self._later[0] < end:
            heappush(self._due, heappop(self._later))
        self._now_ms, self._now_us = now_ms, now_ms * MICROSECONDS

    def scan_due(self) -> Iterator[bytes]:
        """Return the keys of the base version whose timers are due, in time order."""
        begin = b"" if self._fired_ms is None else end_of_ms(self._fired_ms)
        return self.scan(begin, end_of_ms(self._now_ms))

    def next_registered(self) -> bytes | None:
        """Return the first key that this task has registered and that is already due, None if there is none."""
        return self._due[0] if self._due else None

    def pop_registered(self) -> bytes:
        """Remove and return the key that ``next_registered`` returned."""
        return heappop(self._due)

    def take(self, key: bytes) -> bool:
        """Remove the timer under this key. Return whether it still existed."""
        if self.is_deleted(key):
            return False
        may_be_replaced = key in self._replaced and not self.is_written(key)
        is_replaced = may_be_replaced and self._are_rounded([key])[0]
        self.put(key, there=False, was_there=True)
        return not is_replaced

    def earliest_ms(self) -> int | None:
        """Return when the first remaining timer is due, None if there is none. Call it after the last flush.

        After several flushes it may be too early: timers that a later flush deleted still count.
        """
        return None if self._earliest is None else round_up_ms(read_timer_key(self._earliest).at_us)

    @override
    def flush(self, end: bytes | None) -> Written:
        self._remove_replaced()
        stored = next(self.scan(end_of_ms(self._now_ms)), None)
        known = [key for key in (stored, self._earliest, self.first_written()) if key is not None]
        self._earliest = min(known, default=None)
        return super().flush(end)

    def spill(self) -> Written:
        """See Staged. Nothing: fired and deleted timers are looked up among the written rows."""
        return iter(())

    def _are_rounded(self, keys: list[bytes]) -> list[bool]:
        """Return, for each key, whether the base version has a row that an earlier release wrote under it."""
        return [value == ROUNDED for value in self.read_base(keys)]

    def _remove_replaced(self) -> None:
        """Delete the rounded rows of instants that were registered or deleted since."""
        keys = sorted(key for key in self._replaced if not self.is_written(key))
        self._replaced = set()
        for key, is_rounded in zip(keys, self._are_rounded(keys), strict=True):
            if is_rounded:
                self.put(key, there=False, was_there=True)
