"""Adds up the hashes of many rows, see ``Digest``."""

from __future__ import annotations

import numpy as np
import xxhash

from pyspark_ckpt.state_store.arrays.packed import Bytes
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.arrays.xxh3 import LENGTHS, hash_rows
from pyspark_ckpt.state_store.format.keys import STATE_BYTES

MIN_ROWS = 512
"""Fewer rows of one length are hashed faster one by one."""
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def hash_row(key: bytes, value: bytes) -> int:
    """Return the hash of a row with its stored key."""
    return xxhash.xxh3_64_intdigest(key[STATE_BYTES:] + value, len(key))


def sum_row_hashes(rows: PackedRows) -> int:
    """Return the sum of the hashes of rows with their stored keys."""
    total = 0
    for _, part in rows.by_size():
        key_size, value_size = int(part.keys.size[0]), int(part.values.size[0])
        if len(part) < MIN_ROWS or key_size - STATE_BYTES + value_size not in LENGTHS:
            total += sum(hash_row(key, value) for key, value in part.rows())
        else:
            found = hash_rows(_join(part, key_size, value_size), key_size)
            total += int((found & _LOW).sum()) + (int((found >> _HALF).sum()) << 32)
    return total


def _join(rows: PackedRows, key_size: int, value_size: int) -> Bytes:
    """Return, for each row, the key without its state number, followed by the value."""
    joined = np.empty((len(rows), key_size - STATE_BYTES + value_size), np.uint8)
    joined[:, : key_size - STATE_BYTES] = rows.keys.behind(STATE_BYTES).matrix(key_size - STATE_BYTES)
    joined[:, key_size - STATE_BYTES :] = rows.values.matrix(value_size)
    return joined
