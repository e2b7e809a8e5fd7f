"""Spark's hash of many keys at once, given as Arrow columns. See ``spark_hash`` for one key, and for the rules.

Columns of numbers, dates, instants, text and bytes are hashed with numpy; others value by value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.encoding.spark_hash import hash_value
from pyspark_ckpt.operators.types.columns import is_fixed_width, python_values
from pyspark_ckpt.state_store.format.spark_hash import SEED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint32]

_WORD = 4
_LONG_BITS = 64
_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_FIVE, _ADDED = np.uint32(5), np.uint32(0xE6546B64)
_F1, _F2 = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)


def hash_columns(columns: Sequence[pa.Array], count: int) -> Hashes:
    """Return the unsigned hashes of ``count`` keys with these columns."""
    hashes = np.full(count, SEED, np.uint32)
    for column in columns:
        if pa.types.is_null(column.type):
            continue
        there = column.is_valid().to_numpy(zero_copy_only=False)
        if there.all():
            hashes = _hash(column, hashes)
        elif there.any():
            hashes[there] = _hash(column.filter(pa.array(there)), hashes[there])
    return hashes


def _hash(column: pa.Array, seeds: Hashes) -> Hashes:
    """Return the hashes of values of which none is null, each chained to its seed."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _hash_bytes(column, seeds)
    if pa.types.is_boolean(kind):
        return _hash_ints(column.cast(pa.int32()).to_numpy().view(np.uint32), seeds)
    if pa.types.is_floating(kind):
        return _hash_floats(column.to_numpy(), seeds)
    if is_fixed_width(kind) and not pa.types.is_decimal(kind):
        if kind.bit_width == _LONG_BITS:
            return _hash_longs(column.view(pa.int64()).to_numpy().view(np.uint64), seeds)
        as_numbers = column.view({8: pa.int8(), 16: pa.int16(), 32: pa.int32()}[kind.bit_width])
        return _hash_ints(as_numbers.to_numpy().astype(np.int32).view(np.uint32), seeds)
    of_value: Any = hash_value(kind)
    pairs = zip(python_values(column), seeds.tolist(), strict=True)
    return np.fromiter((of_value(value, seed) for value, seed in pairs), np.uint32, len(seeds))


def _hash_floats(values: NDArray[Any], seeds: Hashes) -> Hashes:
    plain = np.where(np.isnan(values), np.array(np.nan, values.dtype), values + values.dtype.type(0))
    is_double = values.dtype.itemsize * 8 == _LONG_BITS
    return _hash_longs(plain.view(np.uint64), seeds) if is_double else _hash_ints(plain.view(np.uint32), seeds)


def _hash_ints(values: Hashes, seeds: Hashes) -> Hashes:
    return _finish(_mix(seeds, values), np.uint32(_WORD))


def _hash_longs(values: NDArray[np.uint64], seeds: Hashes) -> Hashes:
    low, high = values.astype(np.uint32), (values >> np.uint64(32)).astype(np.uint32)
    return _finish(_mix(_mix(seeds, low), high), np.uint32(2 * _WORD))


def _hash_bytes(column: pa.Array, seeds: Hashes) -> Hashes:
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
    begins, sizes = ends[:-1], np.diff(ends)
    stored = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    hashes = seeds.copy()
    order = np.argsort(sizes, kind="stable")
    for some in np.split(order, np.flatnonzero(np.diff(sizes[order])) + 1):
        if len(some):
            width = int(sizes[some[0]])
            at = begins[some, None] + np.arange(width)
            hashes[some] = _hash_rows(stored[at], seeds[some])
    return hashes


def _hash_rows(rows: NDArray[np.uint8], seeds: Hashes) -> Hashes:
    """Return the hashes of byte strings of one size, the rows of a matrix. Bytes after whole words are mixed singly."""
    width = rows.shape[1]
    whole = width // _WORD * _WORD
    words = np.ascontiguousarray(rows[:, :whole]).view("<u4") if whole else np.zeros((len(rows), 0), np.uint32)
    for number in range(words.shape[1]):
        seeds = _mix(seeds, words[:, number])
    for at in range(whole, width):  # a byte of Java has a sign
        seeds = _mix(seeds, rows[:, at].view(np.int8).astype(np.int32).view(np.uint32))
    return _finish(seeds, np.uint32(width))


def _mix(seeds: Hashes, words: NDArray[np.uint32]) -> Hashes:
    words = words * _C1
    words = words << np.uint32(15) | words >> np.uint32(17)
    seeds = seeds ^ words * _C2
    seeds = seeds << np.uint32(13) | seeds >> np.uint32(19)
    return seeds * _FIVE + _ADDED


def _finish(hashes: Hashes, size: np.uint32) -> Hashes:
    hashes = hashes ^ size
    hashes ^= hashes >> np.uint32(16)
    hashes *= _F1
    hashes ^= hashes >> np.uint32(13)
    hashes *= _F2
    hashes ^= hashes >> np.uint32(16)
    return hashes
