"""Convert Arrow columns to numpy numbers or Python values, and back, without loss, also in nested types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, pairwise, repeat
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.operators.types.conversions import WRONG_VALUE, plain_column
from pyspark_ckpt.operators.types.stored_types import is_variant
from pyspark_ckpt.operators.types.struct_values import field_names, get_fields, struct_class, struct_maker
from pyspark_ckpt.operators.types.value_types import (
    NO_NULL_KEY,
    get_elements,
    get_entries,
    hashable,
    no_null,
    require_distinct,
)
from pyspark_ckpt.operators.types.value_types import reader as value_reader
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray


MAX_ELEMENTS = 2**31 - 1
"""Arrow counts the elements of a column's arrays and maps in 32 bits."""
_SMALL_MAP = 8
"""Up to this many keys of a map are compared at each distance, which is several times as fast as numbering them."""
AS_ARROW = (
    "Read it as Arrow: with rows_of() or batches() of a reader, or in a VectorProcessor with calls for many keys."
)
"""The hint for a date or an instant that Python cannot hold."""
AS_BINARY = "Give the column the type binary, or read the text in its own character set with Spark's decode()."
"""The hint for a text that is not UTF-8."""
_SHOWN_BYTES = 32


def is_fixed_width(kind: pa.DataType) -> bool:
    """Whether numpy can hold the values of this type as numbers."""
    return bool(pa.types.is_primitive(kind))


def has_variant(kind: pa.DataType) -> bool:
    """Whether this is a VARIANT or contains one."""
    is_one = is_variant(kind)
    return is_one or (pa.types.is_nested(kind) and any(has_variant(kind.field(n).type) for n in range(kind.num_fields)))


def number_type(kind: pa.DataType) -> str:
    """Return the little-endian numpy type that holds the values of a fixed-width type."""
    letter = "f" if pa.types.is_floating(kind) else "i"
    return f"<{letter}{max(1, int(kind.bit_width) // 8)}"


def to_numbers(column: pa.Array) -> NDArray[Any]:
    """Return the values of a fixed-width column as numbers: dates as days, instants as microseconds, null as 0."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    dtype = np.dtype(number_type(column.type))
    if len(column) == 0:
        return np.zeros(0, dtype)
    values = np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)
    return values if column.null_count == 0 else np.where(validity(column), values, dtype.type(0))


def from_numbers(kind: pa.DataType, numbers: NDArray[Any], valid: NDArray[np.bool_]) -> pa.Array:
    """Return the inverse of ``to_numbers``; null where not ``valid``.

    Arrow warns of values that are not aligned, as one number from among stored bytes may be.
    """
    content = np.packbits(numbers.astype(np.bool_), bitorder="little") if pa.types.is_boolean(kind) else numbers
    present = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    aligned = np.require(content, requirements=["C_CONTIGUOUS", "ALIGNED"])
    return pa.Array.from_buffers(kind, len(numbers), [present, pa.py_buffer(aligned)])


def validity(column: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return for each value whether it is not null."""
    if column.null_count == 0:
        return np.ones(len(column), np.bool_)
    valid: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def python_values(column: pa.Array) -> list[Any]:
    """Return a column as the Python values that processors see: structs as named tuples, maps as dicts.

    Raises InvalidInputError (a date or an instant that Python cannot hold, a text that is not UTF-8).
    """
    return _values(column, _temporal_values)


def _values(column: pa.Array, of_times: Callable[[pa.Array], list[Any]]) -> list[Any]:
    kind = column.type
    if pa.types.is_struct(kind):
        make = struct_maker(kind)
        fields = [_values(column.field(n), of_times) for n in range(kind.num_fields)]
        values: list[Any] = list(map(make, zip(*fields, strict=True))) if fields else [make(())] * len(column)
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
        return _plain_list(column)
    if column.null_count == 0:
        return values
    return [value if present else None for value, present in zip(values, validity(column).tolist(), strict=True)]


def _plain_list(column: pa.Array) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError as problem:
        raise InvalidInputError(
            f"There is a text that is not UTF-8, {problem.object[:_SHOWN_BYTES]!r}: {problem.reason}.", hint=AS_BINARY
        ) from problem
    return values


def _temporal_values(column: pa.Array) -> list[Any]:
    try:
        if pa.types.is_time(column.type):  # Arrow's own conversion drops nanoseconds
            read = value_reader(column.type)
            return [read(value) for value in column.cast(pa.int64()).to_pylist()]
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError) as problem:
        raise InvalidInputError(
            f"There is a value of type {column.type} that Python cannot hold: {problem}.",
            hint=AS_ARROW,
        ) from problem
    return values


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type with dates as days and instants as microseconds: numbers that Python can always hold."""
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
    """Return ``python_values`` with dates and instants as numbers, so that Python can hold every value."""
    return _values(column, _plain_times)


def arrow_of_plain(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return the inverse of ``plain_values``. Accepts stored nulls in fields that are NOT NULL by now.

    Raises ValueError (a map with a null key: earlier releases stored some, and Arrow has none).
    """
    return arrow_values(values, kind, _plain_column)


def _plain_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, plain_type(kind)).view(kind)


def _plain_times(column: pa.Array) -> list[Any]:
    plain = plain_type(column.type)
    return _temporal_values(column) if plain == column.type else list(column.view(plain).to_pylist())


def _spans(column: pa.ListArray | pa.MapArray) -> list[tuple[int, int]]:
    offsets = column.offsets.to_pylist()
    return list(pairwise(offsets))


def arrow_values(
    values: Sequence[Any], kind: pa.DataType, plain: Callable[[Sequence[Any], pa.DataType], pa.Array] = plain_column
) -> pa.Array:
    """Return the inverse of ``python_values``; a struct may be any sequence, mapping or object with its fields.

    ``plain`` makes the columns whose type is not nested. Raises TypeError, ValueError, AttributeError, OverflowError
    (also as pyarrow's own errors) for values that the type does not accept, and what ``plain`` raises.
    """
    if not pa.types.is_nested(kind):
        return plain(values, kind)
    absent = np.fromiter(map(is_, values, repeat(None)), np.bool_, len(values))
    if pa.types.is_struct(kind):
        return _structs(values, absent, kind, plain)
    if pa.types.is_map(kind):
        there = [() if value is None else get_entries(value) for value in values]
        pairs = list(chain.from_iterable(there))
        keys = [key for key, _ in pairs]
        stored_keys = arrow_values(keys, kind.key_type, plain)
        if stored_keys.null_count:  # Arrow would crash the process, before Arrow 26 even if nobody has counted them
            raise ValueError(NO_NULL_KEY)
        if plain is not _plain_column:
            require_distinct_keys(stored_keys, np.fromiter(map(len, there), np.int64, len(there)))
        children = [
            stored_keys,
            _part([item for _, item in pairs], kind.item_field, plain),
        ]
        contents = [pa.StructArray.from_arrays(children, fields=[kind.key_field, kind.item_field])]
    else:
        there = [() if value is None else _count(get_elements(value)) for value in values]
        contents = [_part(list(chain.from_iterable(there)), kind.value_field, plain)]
    counts = np.fromiter(map(len, there), np.int64, len(there))
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    if ends[-1] > MAX_ELEMENTS:
        raise ValueError(f"a column can have at most 2147483647 elements, got {ends[-1]}")
    present = pa.py_buffer(np.packbits(~absent, bitorder="little"))
    offsets = pa.py_buffer(ends.astype(np.int32))
    return pa.Array.from_buffers(kind, len(values), [present, offsets], children=contents)


class Misfit(NamedTuple):
    """A value that its column does not accept, and why."""

    field: pa.Field
    value: Any
    why: Exception

    def __str__(self) -> str:
        """Return the form used in messages."""
        return (
            f"column {self.field.name!r} is of type {self.field.type}, but {repr(self.value)[:200]} is of type "
            f"{type(self.value).__name__}: {self.why}"
        )


def find_misfit(values: Sequence[Any], columns: pa.Schema) -> Misfit | None:
    """Return the first value of a row that its column does not accept; None if all are accepted."""
    for field, value in zip(columns, values, strict=True):
        try:
            arrow_values([(value,)], pa.struct([field]))
        except WRONG_VALUE as problem:
            return Misfit(field, value, problem)
    return None


def _structs(
    values: Sequence[Any],
    absent: NDArray[np.bool_],
    kind: pa.StructType,
    plain: Callable[[Sequence[Any], pa.DataType], pa.Array],
) -> pa.Array:
    names = field_names(kind)
    nothing = (None,) * len(names)
    rows = values
    if not {tuple, struct_class(names)}.issuperset(map(type, values)) or set(map(len, values)) != {len(names)}:
        rows = [nothing if value is None else get_fields(value, names) for value in values]
    columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    fields = []
    for field, column in zip(kind, columns, strict=True):
        if not field.nullable and plain is not _plain_column:
            _require_values(field, column, absent)
        fields.append(arrow_values(column, field.type, plain))
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=pa.array(absent))


def _require_values(field: pa.Field, column: Sequence[Any], absent: NDArray[np.bool_]) -> None:
    """Raise ValueError if a NOT NULL field is None in a value that is present."""
    if any(value is None and not is_absent for value, is_absent in zip(column, absent.tolist(), strict=True)):
        raise ValueError(no_null(field))


def _part(values: Sequence[Any], field: pa.Field, plain: Callable[[Sequence[Any], pa.DataType], pa.Array]) -> pa.Array:
    """Return the column of the elements of arrays, or of the values of maps."""
    if not field.nullable and plain is not _plain_column:
        _require_values(field, values, np.zeros(len(values), np.bool_))
    return arrow_values(values, field.type, plain)


def require_distinct_keys(keys: pa.Array, counts: NDArray[np.int64]) -> None:
    """Raise ValueError if a map has a key twice. ``keys``: of all maps in turn; ``counts``: how many each map has."""
    most = int(counts.max(initial=0))
    if most <= 1:
        return
    whose = np.repeat(np.arange(len(counts)), counts)
    if not pa.types.is_nested(keys.type) and not _has_twice(keys, whose, most):
        return
    values, at = plain_values(keys), 0
    for count in counts.tolist():
        require_distinct(values[at : at + count])
        at += count


def _has_twice(keys: pa.Array, whose: NDArray[np.int64], most: int) -> bool:
    """Whether a map has a key twice. Key n belongs to map ``whose[n]``; no map has more than ``most`` keys."""
    if most <= _SMALL_MAP:
        for distance in range(1, most):
            is_same = pc.equal(keys.slice(distance), keys.slice(0, len(keys) - distance))
            if is_same.true_count:
                is_same = is_same.to_numpy(zero_copy_only=False)
                if (is_same & (whose[distance:] == whose[:-distance])).any():
                    return True
        return False
    numbered = keys.dictionary_encode()
    pairs = numbered.indices.to_numpy().astype(np.int64) + whose * len(numbered.dictionary)
    pairs.sort()
    return bool((pairs[1:] == pairs[:-1]).any())


def _count(elements: Any) -> Any:
    return elements if hasattr(elements, "__len__") else list(elements)
