"""Arrow columns as numpy numbers and as Python values, and back. Nothing is lost on the way, in nested types either."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.value_types import elements_of, fields_of, hashable, struct_class
from pyspark_ckpt.operators.value_types import reader as value_reader
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


AS_ARROW = "Take it as Arrow: rows_of() or batches() of a reader, the calls for many keys of a VectorProcessor."
"""What to do about a date or an instant that Python does not have."""


def is_fixed_width(kind: pa.DataType) -> bool:
    """Whether numpy can hold the values of this type as numbers."""
    return bool(pa.types.is_primitive(kind))


def is_variant(kind: pa.DataType) -> bool:
    """Whether this is a VARIANT: a struct of its value and its metadata, of which PySpark has marked the latter."""
    return pa.types.is_struct(kind) and any((field.metadata or {}).get(b"variant") == b"true" for field in kind)


def has_variant(kind: pa.DataType) -> bool:
    """Whether this is a VARIANT or has one in it."""
    is_one = is_variant(kind)
    return is_one or (pa.types.is_nested(kind) and any(has_variant(kind.field(n).type) for n in range(kind.num_fields)))


def number_type(kind: pa.DataType) -> str:
    """The little-endian numpy type that holds the values of a type of fixed width."""
    letter = "f" if pa.types.is_floating(kind) else "i"
    return f"<{letter}{max(1, int(kind.bit_width) // 8)}"


def numbers_of(column: pa.Array) -> NDArray[Any]:
    """The values of a column of fixed width as numbers: dates as days, instants as microseconds, null as 0."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    dtype = np.dtype(number_type(column.type))
    if len(column) == 0:
        return np.zeros(0, dtype)
    values = np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)
    return values if column.null_count == 0 else np.where(validity(column), values, dtype.type(0))


def column_of(kind: pa.DataType, numbers: NDArray[Any], valid: NDArray[np.bool_]) -> pa.Array:
    """The inverse of ``numbers_of``; null where not ``valid``."""
    content = np.packbits(numbers.astype(np.bool_), bitorder="little") if pa.types.is_boolean(kind) else numbers
    present = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(numbers), [present, pa.py_buffer(np.ascontiguousarray(content))])


def validity(column: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    """For each value whether it is not null."""
    if column.null_count == 0:
        return np.ones(len(column), np.bool_)
    valid: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def python_values(column: pa.Array) -> list[Any]:
    """A column as the Python values that processors see: structs as named tuples, maps as dicts.

    Raises InvalidInputError for a date or an instant that Python does not have.
    """
    return _values(column, _temporal_values)


def _values(column: pa.Array, of_times: Callable[[pa.Array], list[Any]]) -> list[Any]:
    kind = column.type
    if pa.types.is_struct(kind):
        made = struct_class(kind)
        fields = [_values(column.field(n), of_times) for n in range(kind.num_fields)]
        values: list[Any] = list(map(made._make, zip(*fields, strict=True))) if fields else [made()] * len(column)
    elif pa.types.is_map(kind):
        keys, items = _values(column.keys, of_times), _values(column.items, of_times)
        keys = list(map(hashable, keys)) if pa.types.is_nested(kind.key_type) else keys
        values = [dict(zip(keys[a:b], items[a:b], strict=True)) for a, b in _spans(column)]
    elif pa.types.is_list(kind):
        elements = _values(column.values, of_times)
        values = [elements[a:b] for a, b in _spans(column)]
    elif pa.types.is_temporal(kind):
        return of_times(column)
    else:
        plain: list[Any] = column.to_pylist()
        return plain
    if column.null_count == 0:
        return values
    return [value if present else None for value, present in zip(values, validity(column).tolist(), strict=True)]


def _temporal_values(column: pa.Array) -> list[Any]:
    try:
        if pa.types.is_time(column.type):  # of which Arrow drops nanoseconds
            read = value_reader(column.type)
            return [read(value) for value in column.cast(pa.int64()).to_pylist()]
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError) as problem:
        raise InvalidInputError(
            f"There is a value of type {column.type} that Python has none for: {problem}.",
            hint=AS_ARROW,
        ) from problem
    return values


def plain_type(kind: pa.DataType) -> pa.DataType:
    """A type with dates and instants as the numbers that they are, days and microseconds: of these Python has all."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        keys, items = kind.key_field, kind.item_field
        return pa.map_(keys.with_type(plain_type(keys.type)), items.with_type(plain_type(items.type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)))
    if pa.types.is_date(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def plain_values(column: pa.Array) -> list[Any]:
    """``python_values`` with dates and instants as numbers: whatever they are, there is a value."""
    return _values(column, _plain_times)


def arrow_of_plain(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The inverse of ``plain_values``."""
    return arrow_values(values, kind, lambda values, kind: pa.array(values, plain_type(kind)).view(kind))


def _plain_times(column: pa.Array) -> list[Any]:
    plain = plain_type(column.type)
    return _temporal_values(column) if plain == column.type else list(column.view(plain).to_pylist())


def _spans(column: pa.ListArray | pa.MapArray) -> list[tuple[int, int]]:
    offsets = column.offsets.to_pylist()
    return list(pairwise(offsets))


def arrow_values(
    values: Sequence[Any], kind: pa.DataType, plain: Callable[[Sequence[Any], pa.DataType], pa.Array] = pa.array
) -> pa.Array:
    """The inverse of ``python_values``; a struct may be any sequence, mapping or object with its fields.

    ``plain`` makes the columns whose type is not nested. Raises TypeError, ValueError, AttributeError (pyarrow's own
    errors among them) for values of another type, and what ``plain`` raises.
    """
    if not pa.types.is_nested(kind):
        return plain(values, kind)
    absent = np.fromiter((value is None for value in values), np.bool_, len(values))
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        nothing = (None,) * len(names)
        rows = [nothing if value is None else fields_of(value, names) for value in values]
        fields = [arrow_values([row[n] for row in rows], field.type, plain) for n, field in enumerate(kind)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=pa.array(absent))
    there = [() if value is None else value for value in values]
    counts = np.fromiter(map(len, there), np.int32, len(there))
    offsets = pa.array(np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)]))
    if pa.types.is_map(kind):
        pairs = list(chain.from_iterable(value.items() if isinstance(value, Mapping) else value for value in there))
        keys = arrow_values([key for key, _ in pairs], kind.key_type, plain)
        items = arrow_values([item for _, item in pairs], kind.item_type, plain)
        children = [pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])]
    else:
        elements = list(chain.from_iterable(map(elements_of, there)))
        children = [arrow_values(elements, kind.value_type, plain)]
    present = pa.py_buffer(np.packbits(~absent, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [present, offsets.buffers()[1]], children=children)
