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
from typing import NamedTuple

from pyspark_ckpt.operators.declarations.timers import MICROSECONDS, round_up_ms
from pyspark_ckpt.operators.rows.ordered_rows import INSTANT
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.keys import HASH_BYTES

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
