"""Convert columns to another type without changing a value: the table of ``conversions`` for Arrow's types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.operators.types.columns import require_distinct_keys, to_numbers, validity
from pyspark_ckpt.operators.types.conversions import MICROSECOND_NS, plain_column
from pyspark_ckpt.operators.types.value_types import no_null

if TYPE_CHECKING:
    from numpy.typing import NDArray

_types = pa.types
DAY_NS = 24 * 60 * 60 * 10**9
_FAMILIES: tuple[tuple[str, Callable[[pa.DataType], bool]], ...] = (
    ("nothing", _types.is_null),
    ("truth values", _types.is_boolean),
    ("integers", _types.is_integer),
    ("floats", _types.is_floating),
    ("decimals", _types.is_decimal),
    ("text", lambda kind: _types.is_string(kind) or _types.is_large_string(kind) or _types.is_string_view(kind)),
    (
        "bytes",
        lambda kind: (
            _types.is_binary(kind)
            or _types.is_large_binary(kind)
            or _types.is_binary_view(kind)
            or _types.is_fixed_size_binary(kind)
        ),
    ),
    ("dates", _types.is_date),
    ("instants", _types.is_timestamp),
    ("times", _types.is_time),
    ("durations", _types.is_duration),
    ("structs", _types.is_struct),
    ("maps", _types.is_map),
    (
        "arrays",
        lambda kind: (
            _types.is_list(kind)
            or _types.is_large_list(kind)
            or _types.is_fixed_size_list(kind)
            or _types.is_list_view(kind)
            or _types.is_large_list_view(kind)
        ),
    ),
)
_ALSO_TAKES: Mapping[str, frozenset[str]] = {"floats": frozenset({"integers"}), "decimals": frozenset({"integers"})}


def exact_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return ``column`` as a column of type ``kind``; the same object if it has that type already.

    Raises TypeError (a type that is not accepted), ValueError (a value that is not; also as pyarrow's errors).
    """
    column = decode_column(column)
    if column.type == kind and not _is_limited(kind):
        return column
    family, wanted = _family(column.type), _family(kind)
    if family == "nothing":
        return pa.nulls(len(column), kind)
    if family != wanted and family not in _ALSO_TAKES.get(wanted, ()):
        raise TypeError(f"a column of type {column.type} is not accepted as {kind}")
    return _NESTED.get(wanted, _plain)(column, kind)


def decode_column(column: pa.Array) -> pa.Array:
    """Return a dictionary, run-end encoded or extension column as a column of the type of its values."""
    while True:
        if isinstance(column.type, pa.BaseExtensionType):
            column = column.storage
        elif _types.is_dictionary(column.type):
            column = column.dictionary_decode()
        elif _types.is_run_end_encoded(column.type):
            column = pc.run_end_decode(column)
        else:
            return column


def _plain(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if _types.is_integer(column.type) and _types.is_floating(kind):
        return _floats_of_integers(column, kind)
    if _types.is_integer(column.type) and _types.is_decimal(kind):
        return plain_column(column.to_pylist(), kind)
    if _types.is_timestamp(kind) and kind.tz is None and column.type.tz is not None:
        raise TypeError(f"a column of type {column.type} has a time zone, which timestamp_ntz does not accept")
    converted = column.cast(kind)
    if _types.is_floating(kind):
        _require_finite(column, converted)
    if _types.is_time(kind):
        _require_times(converted)
    return converted


def _family(kind: pa.DataType) -> str:
    return next((name for name, matches in _FAMILIES if matches(kind)), str(kind))


def _is_limited(kind: pa.DataType) -> bool:
    """Whether Arrow accepts values of a type that Spark does not: null for NOT NULL, times of no day, equal keys."""
    if _types.is_map(kind) or _types.is_time(kind):
        return True
    fields = [kind.field(n) for n in range(kind.num_fields)]
    return any(not field.nullable or _is_limited(field.type) for field in fields)


def _floats_of_integers(column: pa.Array, kind: pa.DataType) -> pa.Array:
    numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore"):
        floats = numbers.astype(kind.to_pandas_dtype())
        # Some processors cast a float above the greatest integer back to that integer.
        is_exact = (floats < float(np.iinfo(numbers.dtype).max + 1)) & (floats.astype(numbers.dtype) == numbers)
    if not is_exact.all():
        raise ValueError(f"{int(numbers[np.argmin(is_exact)])} has more digits than a {kind}")
    return pa.array(floats, kind, mask=~validity(column))


def _require_finite(column: pa.Array, converted: pa.Array) -> None:
    """Raise ValueError if a finite number has become infinite."""
    before, after = (each.fill_null(0).to_numpy(zero_copy_only=False) for each in (column, converted))
    has_become = np.isinf(after) & np.isfinite(before)
    if has_become.any():
        raise ValueError(f"{before[np.argmax(has_become)]} does not fit into a {converted.type}")


def _require_times(column: pa.Array) -> None:
    """Raise ValueError for a time outside of a day, or with nanoseconds."""
    nanoseconds = to_numbers(column)
    is_wrong = (nanoseconds < 0) | (nanoseconds >= DAY_NS) | (nanoseconds % MICROSECOND_NS != 0)
    if is_wrong.any():
        wrong = int(nanoseconds[np.argmax(is_wrong)])
        raise ValueError(f"{wrong} ns is not a time of day in whole microseconds")


def _structs(column: pa.StructArray, kind: pa.StructType) -> pa.Array:
    names = [field.name for field in kind]
    given = [field.name for field in column.type]
    if sorted(given) != sorted(names):
        raise TypeError(f"the fields must be {names}, got {given}")
    if given != names and len(set(names)) < len(names):
        raise TypeError(f"several of the fields {given} share a name, so they must be in the order {names}")
    there = validity(column)
    places = range(len(names)) if given == names else map(given.index, names)
    fields = [_part(column.field(n), field, there) for n, field in zip(places, kind, strict=True)]
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=pa.array(~there))


def _arrays(column: pa.Array, kind: pa.ListType) -> pa.Array:
    counts = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    elements = _part(column.flatten(), kind.value_field, None)
    return _repeat(kind, validity(column), _ends(counts), elements)


def _maps(column: pa.MapArray, kind: pa.MapType) -> pa.Array:
    offsets = column.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    keys = exact_column(column.keys[first:last], kind.key_type)
    require_distinct_keys(keys, np.diff(offsets).astype(np.int64))
    items = _part(column.items[first:last], kind.item_field, None)
    entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    return _repeat(kind, validity(column), offsets - first, entries)


_NESTED: Mapping[str, Callable[[pa.Array, Any], pa.Array]] = {"structs": _structs, "arrays": _arrays, "maps": _maps}


def _part(column: pa.Array, field: pa.Field, there: NDArray[np.bool_] | None) -> pa.Array:
    """Convert a part of values, some of which may not be ``there``."""
    if not field.nullable and column.null_count and (there is None or not validity(column)[there].all()):
        raise ValueError(no_null(field))
    return exact_column(column, field.type)


def _ends(counts: NDArray[Any]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _repeat(kind: pa.DataType, there: NDArray[np.bool_], ends: NDArray[Any], contents: pa.Array) -> pa.Array:
    present = pa.py_buffer(np.packbits(there, bitorder="little"))
    offsets = pa.py_buffer(np.ascontiguousarray(ends, np.int32))
    return pa.Array.from_buffers(kind, len(there), [present, offsets], children=[contents])
