"""Convert single values in a microsecond, where the result is certain; other values go through a column.

A converter returns a value as a program reads it back, or as a state takes it. For a value that may be stored as
another one, or not at all, it raises NotPlainError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from copy import deepcopy
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql.types import Row, TimestampType, VariantVal, _create_row

from pyspark_ckpt.operators.types.conversions import EPOCH, Convert
from pyspark_ckpt.operators.types.stored_types import is_variant
from pyspark_ckpt.operators.types.struct_values import field_names, get_fields

_FLOAT = struct.Struct("<f")
_INSTANTS = TimestampType()
_EXACT: tuple[tuple[Callable[[pa.DataType], bool], type], ...] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_float64, float),
    (pa.types.is_string, str),
    (pa.types.is_binary, bytes),
    (pa.types.is_date, date),
)
"""Types whose values are stored and read back unchanged, if they are of this Python type."""


class NotPlainError(Exception):
    """It is not certain here how a value is stored."""


def make_converter(kind: pa.DataType, *, is_nullable: bool, as_read: bool) -> Convert:
    """Return the converter of values of a type. ``as_read``: as a program reads them; else as a state takes them."""
    convert = _choose(kind, as_read=as_read)

    def maybe(value: Any) -> Any:
        if value is None:
            return None if is_nullable else _refuse(value)
        return convert(value)

    return maybe


def copy_value(value: Any) -> Any:
    """Return a value as a program reads it, which the program may change: it shares no part that can change."""
    if isinstance(value, list):
        return list(map(copy_value, value))
    if isinstance(value, dict):
        return {key: copy_value(own) for key, own in value.items()}
    if isinstance(value, Row):
        return _create_row(value.__fields__, list(map(copy_value, value)))
    return deepcopy(value) if isinstance(value, VariantVal) else value


def _refuse(_value: Any) -> Any:
    raise NotPlainError


def _choose(kind: pa.DataType, *, as_read: bool) -> Convert:
    exact = next((_keep(exact) for matches, exact in _EXACT if matches(kind)), None)
    if exact is not None or not pa.types.is_nested(kind):
        return exact or _choose_number(kind, as_read=as_read)
    if pa.types.is_struct(kind):
        return _refuse if is_variant(kind) else _structs(kind, as_read=as_read)
    if pa.types.is_list(kind):
        return _lists(make_converter(kind.value_type, is_nullable=kind.value_field.nullable, as_read=as_read))
    key = make_converter(kind.key_type, is_nullable=False, as_read=as_read)
    item = make_converter(kind.item_type, is_nullable=kind.item_field.nullable, as_read=as_read)
    return _refuse if pa.types.is_nested(kind.key_type) else _maps(key, item)


def _choose_number(kind: pa.DataType, *, as_read: bool) -> Convert:
    if pa.types.is_integer(kind):
        return _integers(1 << kind.bit_width - 1)
    if pa.types.is_decimal(kind):
        return _decimals(kind)
    if pa.types.is_timestamp(kind):
        zoned = _local if as_read else _instant
        return zoned if kind.tz else _naive
    return _single if pa.types.is_float32(kind) else _refuse


def _keep(exact: type) -> Convert:
    return lambda value: value if type(value) is exact else _refuse(value)


def _integers(end: int) -> Convert:
    return lambda value: value if type(value) is int and -end <= value < end else _refuse(value)


def _single(value: Any) -> float:
    try:
        (single,) = _FLOAT.unpack(_FLOAT.pack(value)) if type(value) is float else _refuse(value)
    except OverflowError as problem:
        raise NotPlainError from problem
    return float(single)


def _decimals(kind: pa.Decimal128Type) -> Convert:
    digits, exponent = kind.precision, -kind.scale

    def keep(value: Any) -> Any:
        if type(value) is not Decimal or not value:
            return _refuse(value)
        parts = value.as_tuple()
        return value if parts.exponent == exponent and len(parts.digits) <= digits else _refuse(value)

    return keep


def _naive(value: Any) -> Any:
    return value if type(value) is datetime and value.tzinfo is None and not value.fold else _refuse(value)


def _local(value: Any) -> Any:
    return _INSTANTS.fromInternal(_INSTANTS.toInternal(value)) if type(value) is datetime else _refuse(value)


def _instant(value: Any) -> Any:
    if type(value) is not datetime:
        return _refuse(value)
    return EPOCH + timedelta(microseconds=_INSTANTS.toInternal(value))


def _structs(kind: pa.StructType, *, as_read: bool) -> Convert:
    names, labels = field_names(kind), [field.name for field in kind]
    fields = [make_converter(field.type, is_nullable=field.nullable, as_read=as_read) for field in kind]

    def convert(value: Any) -> Any:
        if not isinstance(value, (tuple, list)) or len(value) != len(fields):
            return _refuse(value)
        try:
            given = get_fields(value, names)
        except ValueError as problem:
            raise NotPlainError from problem
        values = convert_fields(fields, given)
        return _create_row(labels, values) if as_read else values

    return convert


def convert_fields(fields: Sequence[Convert], values: Sequence[Any]) -> tuple[Any, ...]:
    """Return each of ``values`` converted by its converter. Raises NotPlainError."""
    return tuple([convert(value) for convert, value in zip(fields, values, strict=True)])


def _maps(key: Convert, item: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not dict:
            return _refuse(value)
        return {key(each): item(own) for each, own in value.items()}

    return convert


def _lists(element: Convert) -> Convert:
    return lambda value: list(map(element, value)) if type(value) is list else _refuse(value)
