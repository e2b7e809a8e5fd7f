"""Types that a user gives to state and output, and how one Python value of each is written for msgpack or Arrow.

In Python a struct is a named tuple (any sequence, mapping or object with its fields is accepted), a timestamp an aware
datetime in UTC, a timestamp_ntz a naive one, and a map a dict. In keys of a dict an array is a tuple.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
import pyarrow as pa

from pyspark_ckpt.operators.types.conversions import (
    EPOCH,
    EPOCH_DAY,
    MICROSECOND_NS,
    NAIVE_EPOCH,
    Convert,
    find_plain_type,
    plain_writer,
)
from pyspark_ckpt.operators.types.stored_types import arrow_type
from pyspark_ckpt.operators.types.struct_values import field_names, get_fields, struct_maker
from pyspark_ckpt.pyspark_releases import find_types
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.extras import require_extra

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

TypeLike: TypeAlias = "str | type | DataType"

PYTHON_TYPES: Mapping[type, str] = {
    bool: "boolean",
    int: "bigint",
    float: "double",
    str: "string",
    bytes: "binary",
    date: "date",
    datetime: "timestamp",
    Decimal: "decimal(38,18)",
}
_WITHOUT_ARROW = ("CalendarIntervalType", "GeographyType", "GeometryType")
"""Classes of the types that Arrow has no type for, or only a struct that does not match Spark's rows."""
_DECIMAL = Annotated[str, msgspec.Meta(pattern=r"\A-?[0-9]{1,39}(\.[0-9]{1,38})?(E-[0-9]{1,2})?\Z", max_length=64)]


class BeyondPythonError(ValueError):
    """A date or an instant that Spark and Arrow can hold and Python cannot: before year 1 or after year 9999."""


@dataclass(frozen=True)
class ValueType:
    """A Spark type: as Spark's JSON, and as Arrow."""

    schema: Any
    arrow: pa.DataType


def resolve_type(declared: TypeLike, what: str) -> ValueType:
    """Return the type of ``what``, declared as Spark DDL, a Spark type or a Python type. Call it on the driver.

    Without a session, as in tests, this package reads the DDL in Spark's place.

    Raises InvalidInputError, ProcessError (PySpark is not installed).
    """
    require_extra("pyspark", f"The type of {what}")
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType

    ddl = PYTHON_TYPES.get(declared) if isinstance(declared, type) else declared
    if not isinstance(ddl, (str, DataType)):
        raise InvalidInputError(
            f"{what} has the type {declared!r}, which is not a Spark type.",
            hint=f"Give a Spark type as text, such as 'struct<n bigint>', or one of {_names(PYTHON_TYPES)}.",
        )
    try:
        kind = ddl if isinstance(ddl, DataType) else _read_ddl(ddl)
        check_handed(kind, what)
        return ValueType(json.loads(kind.json()), make_handed_type(kind))
    except FormatError as problem:
        raise InvalidInputError(
            f"{what} has the type {ddl!r}, which keyed operators do not take: {problem.message}",
            hint="Declare another type, such as string in place of char and varchar.",
        ) from problem
    except (PySparkException, ValueError) as problem:
        raise InvalidInputError(f"{what} has the type {ddl!r}, which Spark cannot read: {problem}") from problem


def _read_ddl(text: str) -> DataType:
    """Return the type that a text names. Raises PySparkException, ValueError."""
    from pyspark import SparkContext
    from pyspark.sql.types import _parse_datatype_string
    from pyspark.sql.utils import is_remote

    from pyspark_ckpt.operators.types.ddl import read_type

    has_session = is_remote() or SparkContext._active_spark_context is not None  # noqa: SLF001 - no public way
    return _parse_datatype_string(text) if has_session else read_type(text)


def check_handed(kind: DataType, what: str) -> None:
    """Raise InvalidInputError if ``what`` has values of a type that cannot be passed to Python."""
    unshown = _unshown(kind)
    if unshown is not None:
        raise InvalidInputError(
            f"{what} has values of type {unshown.simpleString()}, which cannot be passed to Python: "
            "PySpark has no Arrow type for them, or one that does not match Spark's rows.",
            hint="Cast them to another type, such as string, or leave them out.",
        )


def make_handed_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type in which values of a Spark type are passed to Python. Raises FormatError if there is none.

    It is the same with every release of PySpark, whose own Arrow types differ in details.
    """
    return arrow_type(json.loads(kind.json()))


def make_handed_schema(columns: StructType) -> pa.Schema:
    """Return the schema with ``make_handed_type`` of each column."""
    return pa.schema(list(make_handed_type(columns)))


def _unshown(kind: DataType) -> DataType | None:
    """Return a part of a type that Arrow has no type for, or only a struct that does not match Spark's rows."""
    from pyspark.sql import types

    parts: Sequence[DataType] = ()
    if isinstance(kind, types.StructType):
        parts = [field.dataType for field in kind]
    elif isinstance(kind, types.MapType):
        parts = [kind.keyType, kind.valueType]
    elif isinstance(kind, types.ArrayType):
        parts = [kind.elementType]
    elif isinstance(kind, types.UserDefinedType):
        parts = [kind.sqlType()]
    elif isinstance(kind, find_types(*_WITHOUT_ARROW)):
        return kind
    return next((found for found in map(_unshown, parts) if found is not None), None)


def _names(kinds: Mapping[type, str]) -> str:
    return ", ".join(kind.__name__ for kind in kinds)


def writer(kind: pa.DataType) -> Convert:
    """Return a function that turns a Python value of Arrow type ``kind`` into what msgpack holds; None stays None.

    The function raises TypeError, ValueError or AttributeError for a value of another type.
    """
    convert, same = _writer(kind), find_plain_type(kind)
    if same is not None:
        return lambda value: value if type(value) is same or value is None else convert(value)
    return lambda value: None if value is None else convert(value)


def normaliser(kind: pa.DataType) -> Convert:
    """Return a function that turns an accepted value into the value that is read back after it is stored."""
    write, read = writer(kind), reader(kind)
    return lambda value: read(write(value))


def reader(kind: pa.DataType) -> Convert:
    """Return the inverse of ``writer``."""
    convert = _reader(kind)
    return lambda value: None if value is None else convert(value)


def _writer(kind: pa.DataType) -> Convert:
    if pa.types.is_struct(kind):
        return _struct_writer(kind)
    if pa.types.is_map(kind):
        return _map_writer(kind)
    if pa.types.is_list(kind):
        element = _field_writer(kind.value_field)
        return lambda value: [element(each) for each in get_elements(value)]
    convert = plain_writer(kind)
    return (lambda value: str(convert(value))) if pa.types.is_decimal(kind) else convert


def _map_writer(kind: pa.MapType) -> Convert:
    """Return a writer that raises ValueError if two keys, different in Python, are the same key of the type."""
    keys, items = _part_writer(kind.key_type, NO_NULL_KEY), _field_writer(kind.item_field)
    is_nested = pa.types.is_nested(kind.key_type)

    def write(value: Any) -> Any:
        entries = [[keys(key), items(item)] for key, item in get_entries(value)]
        if is_nested or len(dict(entries)) < len(entries):
            require_distinct([key for key, _ in entries])
        return entries

    return write


def _field_writer(field: pa.Field) -> Convert:
    """Return the writer of a part of a value; it keeps None only in nullable fields."""
    return writer(field.type) if field.nullable else _part_writer(field.type, no_null(field))


def _part_writer(kind: pa.DataType, no_null: str) -> Convert:
    convert = _writer(kind)

    def write(value: Any) -> Any:
        if value is None:
            raise TypeError(no_null)
        return convert(value)

    return write


NO_NULL_KEY = "a map has a key that is None"


def require_distinct(keys: Sequence[Any]) -> None:
    """Raise ValueError if two keys of a map are stored as the same key."""
    known = set()
    for key in map(hashable, keys):
        if key in known:
            raise ValueError(f"a map has the key {repr(key)[:200]} twice")
        known.add(key)


def no_null(field: pa.Field) -> str:
    """Return the message for None in a field that is NOT NULL."""
    return f"{field.name!r} is None, but is declared NOT NULL"


def _reader(kind: pa.DataType) -> Convert:
    if pa.types.is_struct(kind):
        return _struct_reader(kind)
    if pa.types.is_map(kind):
        keys, items = reader(kind.key_type), reader(kind.item_type)
        if not pa.types.is_nested(kind.key_type):
            return lambda value: {keys(key): items(item) for key, item in value}
        return lambda value: {hashable(keys(key)): items(item) for key, item in value}
    if pa.types.is_list(kind):
        element = reader(kind.value_type)
        return lambda value: [element(each) for each in value]
    if pa.types.is_decimal(kind):
        return _decimal_reader(kind)
    if pa.types.is_timestamp(kind):
        return _instant_reader(EPOCH if kind.tz else NAIVE_EPOCH)
    for matches, convert in _PLAIN_READERS:
        if matches(kind):
            return convert
    return lambda value: value


def message_type(kind: pa.DataType) -> Any:
    """Return the msgspec type of a stored value of Arrow type ``kind``, or null, which ``reader`` can read."""
    made: Any
    if pa.types.is_struct(kind):
        made = tuple[tuple(message_type(field.type) for field in kind)]  # type: ignore[misc]  # built at run time
    elif pa.types.is_map(kind):
        made = list[tuple[message_type(kind.key_type), message_type(kind.item_type)]]  # type: ignore[misc]
    elif pa.types.is_list(kind):
        made = list[message_type(kind.value_type)]  # type: ignore[misc]
    elif pa.types.is_decimal(kind):
        made = _DECIMAL
    else:
        plain = ((pa.types.is_string, str), (pa.types.is_binary, bytes), (pa.types.is_boolean, bool))
        found = [each for matches, each in (*plain, (pa.types.is_floating, float)) if matches(kind)]
        most = 1 << (kind.bit_width - 1) if not found else 0
        made = found[0] if found else Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
    return made | None


def hashable(value: Any) -> Any:
    """Return a value from ``reader`` in a form that can be a dict key: with lists as tuples."""
    if not isinstance(value, (list, tuple)):
        return value
    make = getattr(value, "_make", tuple)  # a struct stays a named tuple
    return make(map(hashable, value))


def get_entries(value: Any) -> Any:
    """Return the entries of a map, which a user gives as a mapping. Raises TypeError."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise TypeError(f"{repr(value)[:200]} is not a map")
    return value.items()


def get_elements(value: Any) -> Any:
    """Return the elements of an array, which a user gives as any iterable except text, bytes and mappings.

    These are iterable as well, but "ab" does not mean ["a", "b"]. Raises TypeError.
    """
    if isinstance(value, (str, bytes, bytearray, memoryview, Mapping)):
        raise TypeError(f"{value!r} is not an array")
    return value


def _struct_writer(kind: pa.StructType) -> Convert:
    names, fields = field_names(kind), list(map(_field_writer, kind))

    return lambda value: [field(each) for field, each in zip(fields, get_fields(value, names), strict=True)]


def _struct_reader(kind: pa.StructType) -> Convert:
    make = struct_maker(kind)
    fields = [reader(field.type) for field in kind]
    return lambda value: make([field(each) for field, each in zip(fields, value, strict=True)])


def _decimal_reader(kind: pa.DataType) -> Convert:
    step, most = Decimal(1).scaleb(-kind.scale), Decimal(10) ** (kind.precision - kind.scale)

    def read(value: Any) -> Decimal:
        number = Decimal(value)
        if number.copy_abs() >= most or not number.same_quantum(step):
            raise ValueError(f"{value} is not a decimal({kind.precision},{kind.scale})")
        return number

    return read


def _date(days: int) -> date:
    try:
        return date.fromordinal(EPOCH_DAY + days)
    except (ValueError, OverflowError) as problem:
        raise BeyondPythonError(f"the date {days} days from 1970-01-01") from problem


def _instant_reader(begin: datetime) -> Convert:
    def read(micros: int) -> datetime:
        try:
            return begin + timedelta(microseconds=micros)
        except OverflowError as problem:
            raise BeyondPythonError(f"the instant {micros} us from {begin.isoformat()}") from problem

    return read


def _time_of_day(nanoseconds: int) -> time:
    micros, rest = divmod(nanoseconds, MICROSECOND_NS)
    if rest:
        raise ValueError(f"a time of {nanoseconds} ns is not a whole number of microseconds")
    at = NAIVE_EPOCH + timedelta(microseconds=micros)
    if at.date() != NAIVE_EPOCH.date():
        raise ValueError(f"a time of {nanoseconds} ns is outside of a day")
    return at.time()


_PLAIN_READERS: tuple[tuple[Callable[[pa.DataType], bool], Convert], ...] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_date, _date),
    (pa.types.is_time, _time_of_day),
    (pa.types.is_duration, lambda value: timedelta(microseconds=value)),
)
