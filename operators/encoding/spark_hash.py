"""Spark's hash of a key (``hash(...)``, Murmur3 x86 32 with seed 42), computed in Python for one key at a time.

As in Spark's HashExpression and Murmur3_x86_32, columns are chained, null does not change the hash, -0.0 counts as 0.0,
and the bytes after the last whole word are mixed one by one.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from pyspark_ckpt.operators.types.columns import is_fixed_width
from pyspark_ckpt.operators.types.conversions import EXACT
from pyspark_ckpt.operators.types.struct_values import field_names, get_fields
from pyspark_ckpt.operators.types.value_types import get_elements, writer
from pyspark_ckpt.state_store.format.spark_hash import SEED, hash_bytes, hash_int, hash_long

_LONG_DECIMAL_DIGITS = 18
_LONG_BITS = 64
_DOUBLE_NAN = (0x7FF8000000000000).to_bytes(8, "little")
_FLOAT_NAN = (0x7FC00000).to_bytes(4, "little")

Hash: TypeAlias = Callable[[Any, int], int]


class SparkHash:
    """Computes the unsigned hash of keys whose values have the given types."""

    def __init__(self, kinds: Sequence[pa.DataType]) -> None:
        """Hash columns of these types, in this order."""
        self._columns = [hash_value(kind) for kind in kinds]

    def __call__(self, key: Sequence[Any]) -> int:
        """Return the hash of one key."""
        state = SEED
        for column, value in zip(self._columns, key, strict=True):
            state = column(value, state)
        return state


def hash_value(kind: pa.DataType) -> Hash:
    """Return the function that chains a value of a type, None for null, to a hash."""
    if pa.types.is_null(kind):
        return lambda _, seed: seed
    body = _body(kind)
    return lambda value, seed: seed if value is None else body(value, seed)


def _body(kind: pa.DataType) -> Hash:
    if pa.types.is_struct(kind):
        names, fields = field_names(kind), [hash_value(field.type) for field in kind]
        return lambda value, seed: _chain(fields, get_fields(value, names), seed)
    if pa.types.is_list(kind):
        element = hash_value(kind.value_type)
        return lambda value, seed: _chain([element] * len(value), get_elements(value), seed)
    if pa.types.is_decimal(kind):
        write = writer(kind)
        return lambda value, seed: _hash_decimal(Decimal(write(value)), kind, seed)
    return _make_float_hash(kind) if pa.types.is_floating(kind) else _make_plain_hash(kind)


def _make_plain_hash(kind: pa.DataType) -> Hash:
    write = writer(kind)
    if pa.types.is_string(kind):
        return lambda value, seed: hash_bytes(write(value).encode(), seed)
    if pa.types.is_binary(kind):
        return lambda value, seed: hash_bytes(bytes(write(value)), seed)
    mix = hash_long if is_fixed_width(kind) and kind.bit_width == _LONG_BITS else hash_int
    return lambda value, seed: mix(int(write(value)), seed)


def _make_float_hash(kind: pa.DataType) -> Hash:
    is_double = kind.bit_width == _LONG_BITS
    mix, layout = (hash_long, struct.Struct("<d")) if is_double else (hash_int, struct.Struct("<f"))
    nan = _DOUBLE_NAN if is_double else _FLOAT_NAN

    def of_float(value: float, seed: int) -> int:
        bits = nan if math.isnan(value) else layout.pack(value + 0.0)
        return mix(int.from_bytes(bits, "little"), seed)

    return of_float


def _chain(hashes: Sequence[Hash], values: Sequence[Any], seed: int) -> int:
    for each, value in zip(hashes, values, strict=True):
        seed = each(value, seed)
    return seed


def _hash_decimal(value: Decimal, kind: pa.Decimal128Type, seed: int) -> int:
    unscaled = int(EXACT.scaleb(value, kind.scale))
    if kind.precision <= _LONG_DECIMAL_DIGITS:
        return hash_long(unscaled, seed)
    # As in java.math.BigInteger.toByteArray: the fewest bytes that hold the number and its sign.
    size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    return hash_bytes(unscaled.to_bytes(size, "big", signed=True), seed)
