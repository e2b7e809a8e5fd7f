"""Convert values of a GroupState between columns and what a function of applyInPandasWithState gets and sets.

A value is converted as Spark converts it, times with PySpark's own code. Where Spark has no conversion, it silently
keeps null or a truncated number. Here a number is converted if nothing is lost, and anything else is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    DataType,
    DateType,
    DayTimeIntervalType,
    TimestampNTZType,
    TimestampType,
    _create_row,
)

from pyspark_ckpt.operators.types.columns import arrow_values, python_values
from pyspark_ckpt.operators.types.conversions import EXACT, Convert, microseconds_at
from pyspark_ckpt.operators.types.stored_types import is_variant
from pyspark_ckpt.pyspark_releases import find_binary_class, find_types, make_variant
from pyspark_ckpt.state_store.errors import InvalidInputError

_WRONG = (TypeError, ValueError, AttributeError, ArithmeticError, pa.ArrowException)
_NUMBERS = (int, float, Decimal)
_PLAIN_TEXT = (1e-3, 1e7)
"""Java writes floats from the first number up to the second, exclusive, without an exponent."""
_NOTHING: frozenset[type] = frozenset()
_NULL = frozenset({type(None)})
_TIMES: tuple[tuple[Callable[[pa.DataType], bool], frozenset[type], DataType], ...] = (
    (pa.types.is_date, frozenset({date}), DateType()),
    *((pa.types.is_time, _NOTHING, kind()) for kind in find_types("TimeType")),
    (pa.types.is_duration, frozenset({timedelta}), DayTimeIntervalType()),
)


class GroupValues:
    """Converts the values of one state: tuples, or None if a key has no state."""

    def __init__(self, name: str, kind: pa.StructType) -> None:
        """``name``: the name of the state, for errors."""
        self._name = name
        self._kind = kind
        self._shown = [_make_shower(field.type) for field in kind]
        self._is_shown_as_stored = not any(self._shown)

    def of(self, column: pa.StructArray) -> list[Any]:
        """Return the values of a column as Spark passes them: instants are naive local times, structs are Rows."""
        fields = []
        for n, shown in enumerate(self._shown):
            values = python_values(column.field(n))
            fields.append(values if shown is None else [None if each is None else shown(each) for each in values])
        states: list[Any] = list(zip(*fields, strict=True)) if fields else [()] * len(column)
        if column.null_count:
            present = column.is_valid().to_pylist()
            states = [state if there else None for state, there in zip(states, present, strict=True)]
        return states

    def show(self, value: Any) -> tuple[Any, ...]:
        """Return one stored value, a named tuple of the state's type, as Spark passes it."""
        if self._is_shown_as_stored:
            return tuple(value)
        return tuple(
            [
                each if show is None or each is None else show(each)
                for each, show in zip(value, self._shown, strict=True)
            ]
        )

    def column(self, states: Sequence[tuple[Any, ...] | None]) -> pa.StructArray:
        """Return the column of values that a function has set. Raises InvalidInputError."""
        nothing = (None,) * len(self._kind)
        rows = [nothing if state is None else state for state in states]
        if set(map(len, rows)) - {len(nothing)}:
            wrong = next(row for row in rows if len(row) != len(nothing))
            raise InvalidInputError(
                f"State {self._name!r} has the fields {[field.name for field in self._kind]}, "
                f"but {_brief(wrong)} has {len(wrong)} values."
            )
        fields = [self._field(field, values) for field, values in zip(self._kind, zip(*rows, strict=True), strict=True)]
        absent = pa.array([state is None for state in states], pa.bool_())
        return pa.StructArray.from_arrays(fields, fields=list(self._kind), mask=absent)

    def _field(self, field: pa.Field, values: Sequence[Any]) -> pa.Array:
        try:
            return arrow_values(values, field.type, _convert)
        except _WRONG:
            for value in values:
                self._check(field, value)
            raise

    def _check(self, field: pa.Field, value: Any) -> None:
        try:
            arrow_values([value], field.type, _convert)
        except _WRONG as problem:
            raise InvalidInputError(
                f"State {self._name!r}: its field {field.name!r} of type {field.type} "
                f"cannot hold {_brief(value)} of type {type(value).__name__}.",
                hint="Convert it before update(). Spark would fail, or silently keep null or another value.",
            ) from problem


def _brief(value: Any) -> str:
    return repr(value)[:200]


def _make_shower(kind: pa.DataType) -> Convert | None:
    """Return a function from the values of ``python_values`` to those that Spark passes; None if they are the same."""
    if is_variant(kind):
        return lambda variant: make_variant(*variant)
    if pa.types.is_timestamp(kind) and kind.tz:
        local = TimestampType().fromInternal
        return lambda at: local(microseconds_at(at))
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        fields = [_maybe(_make_shower(field.type)) for field in kind]
        return lambda row: _create_row(names, [show(each) for show, each in zip(fields, row, strict=True)])
    if pa.types.is_binary(kind):
        return None if find_binary_class() is bytes else find_binary_class()
    if pa.types.is_map(kind):
        # A bytearray cannot be a key.
        keys = None if pa.types.is_binary(kind.key_type) else _make_shower(kind.key_type)
        items = _make_shower(kind.item_type)
        key, item = _maybe(keys), _maybe(items)
        return (keys or items) and (lambda entries: {key(each): item(value) for each, value in entries.items()})
    element = _make_shower(kind.value_type) if pa.types.is_list(kind) else None
    show = _maybe(element)
    return element and (lambda elements: list(map(show, elements)))


def _maybe(convert: Convert | None) -> Convert:
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _convert(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values that are not nested as a column. Raises what a conversion raises."""
    same, convert = _choose_types(kind)
    if set(map(type, values)) - same - _NULL:
        plain = (value.item() if isinstance(value, np.generic) else value for value in values)
        values = [value if value is None or type(value) in same else convert(value) for value in plain]
    return pa.array(values, kind)


def _choose_types(kind: pa.DataType) -> tuple[frozenset[type], Convert]:
    """Return the Python types that pyarrow converts as Spark does, and the conversion of other values to them."""
    for matches, same, spark in _TIMES:
        if matches(kind):
            return same, spark.toInternal
    if pa.types.is_timestamp(kind):
        return _NOTHING, (TimestampType() if kind.tz else TimestampNTZType()).toInternal
    if pa.types.is_floating(kind):
        return frozenset({float}), lambda value: _float(value, kind)
    if pa.types.is_decimal(kind):
        return _NOTHING, lambda value: _decimal(value, kind)
    return next(taken for matches, *taken in _TAKEN if matches(kind))  # type: ignore[return-value]


def _refuse(value: Any) -> Any:
    raise TypeError(f"{value!r} cannot be converted without loss")


def _integer(value: Any) -> int:
    number = int(value) if isinstance(value, _NUMBERS) else _refuse(value)
    return number if number == value else _refuse(value)


def _float(value: Any, kind: pa.DataType) -> float:
    if isinstance(value, float):
        return value
    number = float(kind.to_pandas_dtype()(value)) if isinstance(value, _NUMBERS) else _refuse(value)
    return number if number == value else _refuse(value)


def _decimal(value: Any, kind: pa.Decimal128Type) -> Decimal:
    """Return a decimal rounded half up, as Spark rounds one with more digits. Other numbers must not change."""
    number = Decimal(value) if isinstance(value, _NUMBERS) else _refuse(value)
    rounded = number.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, EXACT)
    return rounded if isinstance(value, Decimal) or rounded == number else _refuse(value)


def _text(value: Any) -> str:
    """Return a value as Java writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _format_float(value)
    if isinstance(value, Decimal) and value.is_finite():
        return str(value or value.copy_abs())
    return str(int(value)) if isinstance(value, int) else str(value if isinstance(value, str) else _refuse(value))


def _format_float(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    least, most = _PLAIN_TEXT
    if value == 0 or least <= abs(value) < most:
        return repr(float(value))
    sign, digits, exponent = Decimal(repr(float(value))).as_tuple()
    first, *rest = map(str, digits)
    behind = "".join(rest).rstrip("0") or "0"
    return f"{'-' * sign}{first}.{behind}E{int(exponent) + len(rest)}"


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return bytes(value if isinstance(value, (bytes, bytearray, memoryview)) else _refuse(value))


_TAKEN: Sequence[tuple[Callable[[pa.DataType], bool], frozenset[type], Convert]] = (
    (pa.types.is_integer, frozenset({int}), _integer),
    (pa.types.is_boolean, frozenset({bool}), _refuse),
    (pa.types.is_string, frozenset({str}), _text),
    (pa.types.is_binary, frozenset({bytes}), _bytes),
    (pa.types.is_null, _NOTHING, _refuse),
)
