"""Builds Bloom filters that RocksDB reads, for many keys at once.

The format is that of its "fast local" filter: all bits of a key are within one line of 64 bytes, see ``bloom_impl.h``
in https://github.com/facebook/rocksdb/tree/main/util. The hash is a pre-release version of xxh3, see ``xxph3.h`` there:
for 17 to 240 bytes, one factor differs from the released one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyspark_ckpt.state_store.columns.packed import Bytes
from pyspark_ckpt.state_store.columns.xxh3 import CHUNK_ROWS, LENGTHS, Hashes, avalanche, fold_product, hashes_of
from pyspark_ckpt.state_store.database import BLOOM_BITS_PER_KEY, PREFIX_BYTES

PROBES = 6
"""Bits set for each key: the best number for ``BLOOM_BITS_PER_KEY``."""
LINE_BYTES = 64
_LINE_BITS = np.uint64(9)
_TRAILER = bytes([0xFF, 0, PROBES, 0, 0])
"""It says: none of the older kinds of filter, the first of the newer ones, with lines of 64 bytes."""
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_NEXT_PROBE = np.uint32(0x9E3779B9)
_PROBE_SHIFT = np.uint32(32 - 9)

_SECRETS = np.uint64(0xBE4BA423396CFEB8), np.uint64(0x1CAD21F72C81017C)
_FIRST_PRIME = np.uint64(0x9E3779B1)
_SECOND_PRIME = np.uint64(0xC2B2AE3D27D4EB4F)
_LAST_FACTOR = np.uint64(0x165667B19E3779F9)

_BEFORE_LAST = np.uint64(8 * (PREFIX_BYTES - 4))
KEY_BYTES = range(PREFIX_BYTES, LENGTHS.stop)
"""Sizes of keys that can be hashed."""
_WORD = 8


def prefix_hashes(begins: Hashes) -> Hashes:
    """Return hashes of the first ``PREFIX_BYTES`` of many keys, given their first eight bytes read little-endian."""
    found = np.empty(len(begins), np.uint64)
    for first in range(0, len(begins), CHUNK_ROWS):
        begin = begins[first : first + CHUNK_ROWS]
        found[first : first + CHUNK_ROWS] = _of_half_words(begin & _LOW, begin >> _BEFORE_LAST & _LOW, PREFIX_BYTES)
    return found


def key_hashes(keys: Bytes) -> Hashes:
    """Return hashes of the rows of a matrix whose width is in ``KEY_BYTES``."""
    width = keys.shape[1]
    if width in LENGTHS:
        return hashes_of(keys, 0, _LAST_FACTOR)
    if width <= _WORD:
        first, last = (_column(keys, at, "<u4") for at in (0, width - 4))
        return _of_half_words(first, last, width)
    first, last = (_column(keys, at, "<u8") ^ secret for at, secret in zip((0, width - 8), _SECRETS, strict=True))
    sums = first + last
    sums += np.uint64(width)
    sums += fold_product(first, last)
    avalanche(sums, _LAST_FACTOR)
    return sums


def _of_half_words(first: Hashes, last: Hashes, width: int) -> Hashes:
    """Return hashes of strings of four to eight bytes, given their first four and last four bytes."""
    hashes = last << _HALF
    hashes |= first
    hashes ^= _SECRETS[0]
    hashes ^= hashes >> np.uint64(51)
    hashes *= _FIRST_PRIME
    hashes += np.uint64(width)
    hashes ^= hashes >> np.uint64(47)
    hashes *= _SECOND_PRIME
    avalanche(hashes, _LAST_FACTOR)
    return hashes


def _column(keys: Bytes, at: int, kind: str) -> Hashes:
    return np.ndarray(len(keys), kind, keys, at, keys.strides[:1]).astype(np.uint64)


def filter_of(hashes: Sequence[Hashes]) -> bytes:
    """Return the block of a filter that has the hashes: it answers "maybe" for every key with one of them."""
    count = sum(map(len, hashes))
    lines = max(1, -(-count * BLOOM_BITS_PER_KEY // (8 * LINE_BYTES)))
    bits = np.zeros(lines << int(_LINE_BITS), np.bool_)
    for some in hashes:
        for first in range(0, len(some), CHUNK_ROWS):
            part = some[first : first + CHUNK_ROWS]
            line = part & _LOW
            line *= np.uint64(lines)
            line >>= _HALF
            line <<= _LINE_BITS
            line_at, probe = line.view(np.int64), (part >> _HALF).astype(np.uint32)
            for _ in range(PROBES):
                bits[line_at + (probe >> _PROBE_SHIFT)] = True
                probe *= _NEXT_PROBE
    return np.packbits(bits, bitorder="little").tobytes() + _TRAILER
