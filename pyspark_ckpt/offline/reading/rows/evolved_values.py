"""Values of Spark's own operators whose schema may evolve: each begins with the id of the schema that wrote it.

Spark lets the state variables of transformWithState evolve, by the rules by which Avro reads a record with another
schema: fields are found by name, a field that is missing is null, and numbers may be widened. Source:
``ValueHistory.scala``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

_ID_BYTES = 2

Fields: TypeAlias = "list[pa.Field]"
Decode: TypeAlias = "Callable[[Fields, Sequence[bytes]], list[pa.Array]]"


def decode_evolved(schemas: Sequence[Fields], values: Sequence[bytes], decode: Decode) -> list[pa.Array]:
    """Return the columns of stored values, as the last of ``schemas`` names and types them.

    ``schemas``: the columns by the id of their schema. ``decode`` reads rows of one schema. Raises ValueError and
    pa.ArrowException.
    """
    present = pa.struct(schemas[-1])
    ids = np.array([_read_id(value, len(schemas)) for value in values], np.int64)
    parts, positions = [pa.nulls(0, present)], []
    for number in np.unique(ids):
        where = np.flatnonzero(ids == number)
        fields = schemas[number]
        columns = decode(fields, [values[n][_ID_BYTES:] for n in where.tolist()])
        parts.append(change_type(pa.StructArray.from_arrays(columns, fields=fields), present))
        positions.append(where)
    order = np.argsort(np.concatenate(positions)) if positions else np.empty(0, np.int64)
    return list(pa.concat_arrays(parts).take(pa.array(order)).flatten())


def change_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column that is not a slice as ``kind``, by Avro's rules. Raises pa.ArrowException."""
    old = column.type
    if old == kind:
        return column
    if pa.types.is_struct(old) and pa.types.is_struct(kind):
        return _change_struct(column, kind)
    if pa.types.is_list(old) and pa.types.is_list(kind):
        values = change_type(column.values, kind.value_type)
        return pa.ListArray.from_arrays(_offsets(column), values, type=kind)
    if pa.types.is_map(old) and pa.types.is_map(kind):
        keys, items = change_type(column.keys, kind.key_type), change_type(column.items, kind.item_type)
        return pa.MapArray.from_arrays(_offsets(column), keys, items, type=kind)
    return column.cast(kind, safe=False)


def _change_struct(column: pa.StructArray, kind: pa.StructType) -> pa.Array:
    found = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
    columns = [
        change_type(found[field.name], field.type) if field.name in found else pa.nulls(len(column), field.type)
        for field in kind
    ]
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=column.is_null())


def _offsets(column: pa.ListArray | pa.MapArray) -> pa.Array:
    """Return the offsets of lists or maps in their elements, null for a null, which has no elements."""
    nulls = np.append(column.is_null().to_numpy(zero_copy_only=False), False)
    return pa.array(column.offsets.to_numpy(), mask=nulls)


def _read_id(value: bytes, known: int) -> int:
    number = int.from_bytes(value[:_ID_BYTES], "big")
    if len(value) < _ID_BYTES or number >= known:
        raise ValueError(f"a value begins with {value[:_ID_BYTES].hex()!r}, and its state has {known} schemas")
    return number
