"""Numbers as Spark's range scan encoder writes them: a byte for the sign, then the number big-endian.

The byte is 0 for a negative number, 2 for null, and 1 otherwise. All bits of a negative float are flipped.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.types.columns import from_numbers, number_type, to_numbers, validity

_NEGATIVE, _OTHER, _NULL = 0, 1, 2


def read_ordered(stored: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the numbers of type ``kind`` in a column of bytes. Raises ValueError (a wrong size, an unknown sign)."""
    dtype = np.dtype(number_type(kind))
    size = 1 + dtype.itemsize
    content = [value or b"" for value in stored.to_pylist()]
    if any(len(value) != size for value in content):
        raise ValueError(f"an ordered {kind} must have {size} bytes")
    rows = np.frombuffer(b"".join(content), np.uint8).reshape(-1, size)
    marks = rows[:, 0]
    if len(marks) and marks.max() > _NULL:
        raise ValueError(f"the sign of a number must be 0, 1 or 2, got {marks.max():#04x}")
    bits = np.ascontiguousarray(rows[:, 1:]).view(f">i{dtype.itemsize}").ravel().astype(f"<i{dtype.itemsize}")
    if pa.types.is_floating(kind):
        bits = np.where(marks == _NEGATIVE, ~bits, bits)
    return from_numbers(kind, bits.view(dtype), marks != _NULL)


def write_ordered(column: pa.Array) -> pa.Array:
    """Return the inverse of ``read_ordered``: numbers as a column of bytes."""
    dtype, valid = np.dtype(number_type(column.type)), validity(column)
    numbers = to_numbers(column)
    bits = np.ascontiguousarray(numbers).view(f"<i{dtype.itemsize}")
    is_negative = bits < 0
    if pa.types.is_floating(column.type):
        bits = np.where(is_negative, ~bits, bits)
    rows = np.zeros((len(column), 1 + dtype.itemsize), np.uint8)
    rows[:, 0] = np.where(valid, np.where(is_negative, _NEGATIVE, _OTHER), _NULL)
    rows[:, 1:] = bits.astype(f">i{dtype.itemsize}").view(np.uint8).reshape(len(column), dtype.itemsize)
    return pa.array([row.tobytes() for row in rows], pa.binary())
