"""Computes the xxh3 (64 bits) of many byte strings of one length at once.

It follows https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md for 17 to 240 bytes. The package xxhash takes
one call for each string.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LENGTHS = range(17, 241)
_CHUNK_ROWS = 8192
"""Rows hashed at a time: intermediate results then stay in the processor's cache."""
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_PRIME = 0x9E3779B185EBCA87
_LAST_FACTOR = np.uint64(0x165667919E3779F9)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ALL = (1 << 64) - 1
_SHORT = 128

Hashes = npt.NDArray[np.uint64]


def hash_rows(rows: npt.NDArray[np.uint8], seed: int) -> Hashes:
    """Return hashes of the rows of a matrix whose width is in ``LENGTHS``."""
    found = np.empty(len(rows), np.uint64)
    for first in range(0, len(rows), _CHUNK_ROWS):
        part = rows[first : first + _CHUNK_ROWS]
        found[first : first + _CHUNK_ROWS] = _Hashing(part, seed).hashes()
    return found


def _fold_product(first: Hashes, second: Hashes) -> Hashes:
    """Return the products of 128 bits, each with its halves combined by xor. The factors are overwritten."""
    first_low, second_low = first & _LOW, second & _LOW
    first >>= _HALF
    second >>= _HALF
    low = first_low * second_low
    one, other = first * second_low, first_low * second
    first *= second
    one += low >> _HALF  # neither of the two sums can overflow
    other += one & _LOW
    first += one >> _HALF
    first += other >> _HALF
    low &= _LOW
    other <<= _HALF
    low |= other
    low ^= first
    return low


def _avalanche(hashes: Hashes) -> None:
    """Apply the final step of a hash, in place."""
    hashes ^= hashes >> np.uint64(37)
    hashes *= _LAST_FACTOR
    hashes ^= hashes >> _HALF


class _Hashing:
    """Hashes one chunk of rows."""

    def __init__(self, rows: npt.NDArray[np.uint8], seed: int) -> None:
        self._rows, self._seed, self._length = rows, seed, rows.shape[1]
        self._sum = np.full(len(rows), self._length * _PRIME & _ALL, np.uint64)

    def hashes(self) -> Hashes:
        length = self._length
        if length <= _SHORT:
            for step in range((length - 1) // 32, -1, -1):
                self._add(16 * step, 32 * step)
                self._add(length - 16 * (step + 1), 32 * step + 16)
        else:
            for step in range(8):
                self._add(16 * step, 16 * step)
            _avalanche(self._sum)
            for step in range(8, length // 16):
                self._add(16 * step, 16 * (step - 8) + 3)
            self._add(length - 16, 136 - 17)
        _avalanche(self._sum)
        return self._sum

    def _add(self, at: int, secret_at: int) -> None:
        """Add the folded product of two words."""
        first = self._word(at) ^ _secret(secret_at, self._seed)
        second = self._word(at + 8) ^ _secret(secret_at + 8, -self._seed)
        self._sum += _fold_product(first, second)

    def _word(self, at: int) -> Hashes:
        return np.ndarray(len(self._rows), "<u8", self._rows, at, self._rows.strides[:1])


def _secret(at: int, seed: int) -> np.uint64:
    return np.uint64(int.from_bytes(_SECRET[at : at + 8], "little") + seed & _ALL)
