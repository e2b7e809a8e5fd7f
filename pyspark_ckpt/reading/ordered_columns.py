"""Numbers as Spark's range scan encoder writes them: a byte for their sign, and the number big-endian.

The byte is 0 for a negative number, 1 for another, 2 for null. All bits of a negative float are flipped.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.types.columns import column_of, number_type

_NEGATIVE, _NULL = 0, 2


def read_ordered(stored: pa.Array, kind: pa.DataType) -> pa.Array:
    """The numbers of type ``kind`` in a column of bytes. Raises ValueError for bytes of another size."""
    dtype = np.dtype(number_type(kind))
    size = 1 + dtype.itemsize
    content = [value or b"" for value in stored.to_pylist()]
    if any(len(value) != size for value in content):
        raise ValueError(f"an ordered {kind} has {size} bytes")
    rows = np.frombuffer(b"".join(content), np.uint8).reshape(-1, size)
    marks = rows[:, 0]
    if len(marks) and marks.max() > _NULL:
        raise ValueError(f"{marks.max():#04x} is no sign of a number")
    bits = np.ascontiguousarray(rows[:, 1:]).view(f">i{dtype.itemsize}").ravel().astype(f"<i{dtype.itemsize}")
    if pa.types.is_floating(kind):
        bits = np.where(marks == _NEGATIVE, ~bits, bits)
    return column_of(kind, bits.view(dtype), marks != _NULL)
