"""Spark's order of values, for minimum and maximum: NaN is the greatest float, null the least part of a value.

-0.0 and 0.0 are equal, but -0.0 counts as the minimum and 0.0 as the maximum of them. The result therefore does not
depend on the order in which values arrive.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.types.columns import from_numbers, to_numbers, validity


def least_float(kept: float, value: float) -> float:
    """Return the least of two floats."""
    if value == kept:
        return value if math.copysign(1, value) < 0 else kept
    return value if value < kept or math.isnan(kept) else kept


def greatest_float(kept: float, value: float) -> float:
    """Return the greatest of two floats."""
    if value == kept:
        return kept if math.copysign(1, value) < 0 else value
    return value if value > kept or math.isnan(value) else kept


def by_stored_order(kind: pa.DataType, how: str) -> Callable[[Any, Any], Any]:
    """Return a function for the least (``how``: "min") or the greatest of two arrays or structs, in Spark's order.

    Raises InvalidInputError (a type that has no order).
    """
    codec, is_least = KeyCodec([kind]), how == "min"

    def reduce(kept: Any, value: Any) -> Any:
        return value if (codec.encode((value,)) < codec.encode((kept,))) == is_least else kept

    return reduce


def in_order_as_numbers(column: pa.Array) -> pa.Array:
    """Return floats as integers in the same order; null stays null."""
    numbers = to_numbers(column)
    bits = np.where(np.isnan(numbers), numbers.dtype.type(np.nan), numbers).view(f"<i{numbers.dtype.itemsize}")
    return from_numbers(_find_integer_type(column.type), _flip(bits), validity(column))


def numbers_to_floats(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the inverse of ``in_order_as_numbers``."""
    numbers = to_numbers(column)
    return from_numbers(kind, _flip(numbers).view(f"<f{numbers.dtype.itemsize}"), validity(column))


def _find_integer_type(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if kind.bit_width == pa.int64().bit_width else pa.int32()


def _flip(bits: Any) -> Any:
    """Turn bits of floats into numbers that compare as the floats do, and back. Negative floats order in reverse."""
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)
