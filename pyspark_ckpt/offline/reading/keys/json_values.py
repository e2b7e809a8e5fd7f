"""Convert values to JSON and back: instants, dates and times as ISO 8601, bytes as base64, decimals as text.

A map is an array of pairs, an interval a number of microseconds. A NaN or infinite float is Python's text for it.
Instants, dates and times that Python cannot hold are numbers: microseconds since 1970, days since 1970, nanoseconds.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import Any, TypeAlias

import pyarrow as pa

from pyspark_ckpt.operators.types.struct_values import field_names, get_fields
from pyspark_ckpt.operators.types.value_types import get_elements, reader
from pyspark_ckpt.state_store.errors import InvalidInputError

Convert: TypeAlias = Callable[[Any], Any]
_MICROSECOND = timedelta(microseconds=1)


def json_values(column: pa.Array) -> list[Any]:
    """Return the values of a column as JSON values."""
    kind = column.type
    if pa.types.is_temporal(kind):
        show = int if pa.types.is_duration(kind) else _iso(kind)
        numbers = column.cast(pa.int32() if pa.types.is_date(kind) else pa.int64())
        return [None if value is None else show(value) for value in numbers.to_pylist()]
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        fields = [json_values(column.field(n)) for n in range(kind.num_fields)]
        rows = (
            [dict(zip(names, row, strict=True)) for row in zip(*fields, strict=True)] if fields else [{}] * len(column)
        )
        return _with_nulls(column, rows)
    if pa.types.is_map(kind):
        pairs = list(map(list, zip(json_values(column.keys), json_values(column.items), strict=True)))
        return _with_nulls(column, _spans(column, pairs))
    if pa.types.is_list(kind):
        return _with_nulls(column, _spans(column, json_values(column.values)))
    show = next((convert for matches, convert in _SHOWN if matches(kind)), _as_it_is)
    return [None if value is None else show(value) for value in column.to_pylist()]


def from_json(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401 - any value
    """Return the Python value of Arrow type ``kind`` for a JSON value. Raises InvalidInputError."""
    try:
        return _from_json(value, kind)
    except (TypeError, ValueError, AttributeError, InvalidOperation, binascii.Error, OverflowError) as problem:
        raise InvalidInputError(f"{value!r} is not the JSON of a value of type {kind}: {problem}.") from problem


def _from_json(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401 - any value
    if value is None:
        return None
    if pa.types.is_struct(kind):
        given = get_fields(value, field_names(kind))
        return [_from_json(each, field.type) for each, field in zip(given, kind, strict=True)]
    if pa.types.is_list(kind):
        return [_from_json(each, kind.value_type) for each in get_elements(value)]
    if pa.types.is_timestamp(kind):
        at = datetime.fromisoformat(value.replace("Z", "+00:00"))  # Python 3.10 does not read Z
        return at if at.tzinfo or not kind.tz else at.replace(tzinfo=timezone.utc)
    read = next((convert for matches, convert in _READ if matches(kind)), _as_it_is)
    return read(value)


def _iso(kind: pa.DataType) -> Convert:
    """Return a function that writes ISO 8601, or Spark's number for values that Python cannot hold."""
    read = reader(kind)

    def show(number: int) -> str | int:
        try:
            return str(read(number).isoformat())
        except (ValueError, OverflowError):
            return number

    return show


def _spans(column: pa.ListArray | pa.MapArray, values: Sequence[Any]) -> list[Any]:
    return [values[begin:end] for begin, end in pairwise(column.offsets.to_pylist())]


def _with_nulls(column: pa.Array, values: Sequence[Any]) -> list[Any]:
    return [value if there else None for value, there in zip(values, column.is_valid().to_pylist(), strict=True)]


def _as_it_is(value: Any) -> Any:  # noqa: ANN401 - any value
    return value


def _show_float(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


_SHOWN: tuple[tuple[Callable[[pa.DataType], bool], Convert], ...] = (
    (pa.types.is_floating, _show_float),
    (pa.types.is_binary, lambda value: base64.b64encode(value).decode("ascii")),
    (pa.types.is_decimal, str),
)
_READ: tuple[tuple[Callable[[pa.DataType], bool], Convert], ...] = (
    (pa.types.is_floating, float),
    (pa.types.is_date, date.fromisoformat),
    (pa.types.is_time, time.fromisoformat),
    (pa.types.is_binary, lambda value: base64.b64decode(value, validate=True)),
    (pa.types.is_decimal, lambda value: Decimal(str(value))),
    (pa.types.is_duration, lambda value: value * _MICROSECOND),
)
