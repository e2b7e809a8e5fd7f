"""Spark's hash of numbers and bytes: Murmur3 x86 32, as in Murmur3_x86_32. Each hash is chained to the one before."""

from __future__ import annotations

SEED = 42
_MASK = 0xFFFFFFFF


def hash_int(value: int, seed: int) -> int:
    """Return the unsigned hash of a number of 32 bits, chained to ``seed``."""
    return _finish(_mix(seed, value & _MASK), 4)


def hash_long(value: int, seed: int) -> int:
    """Return the unsigned hash of a number of 64 bits, chained to ``seed``."""
    return _finish(_mix(_mix(seed, value & _MASK), value >> 32 & _MASK), 8)


def hash_bytes(value: bytes, seed: int) -> int:
    """Return the unsigned hash of bytes, chained to ``seed``. Bytes after the last whole word are mixed one by one."""
    whole = len(value) & ~3
    for at in range(0, whole, 4):
        seed = _mix(seed, int.from_bytes(value[at : at + 4], "little"))
    for byte in value[whole:]:
        seed = _mix(seed, (byte - 256 if byte > 127 else byte) & _MASK)  # noqa: PLR2004 - a byte of Java has a sign
    return _finish(seed, len(value))


def hash_int_signed(value: int) -> int:
    """Return the hash of an int column as a signed number."""
    unsigned = hash_int(value, SEED)
    return unsigned - (1 << 32) if unsigned >> 31 else unsigned


def _mix(seed: int, word: int) -> int:
    word = word * 0xCC9E2D51 & _MASK
    word = (word << 15 | word >> 17) & _MASK
    word = word * 0x1B873593 & _MASK
    seed ^= word
    seed = (seed << 13 | seed >> 19) & _MASK
    return seed * 5 + 0xE6546B64 & _MASK


def _finish(state: int, length: int) -> int:
    state ^= length
    state ^= state >> 16
    state = state * 0x85EBCA6B & _MASK
    state ^= state >> 13
    state = state * 0xC2B2AE35 & _MASK
    return state ^ state >> 16
