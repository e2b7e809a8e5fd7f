"""Which values a type accepts: one table for states, keys and output, one value at a time or as columns.

| type | accepts | as a column |
|---|---|---|
| boolean | bool | boolean |
| integers, intervals of months | int that fits | integers that fit |
| float, double | float; int that it holds exactly. No finite number becomes infinite | floats; such integers |
| decimal | Decimal and int that fit, with no more digits | decimals and integers that fit |
| string | str that is valid Unicode | text |
| binary | bytes, bytearray, memoryview | binary |
| date | date, not datetime | dates |
| timestamp | datetime; without a zone it is UTC | timestamps |
| timestamp_ntz | datetime without a zone | timestamps without a zone |
| time | time without a zone | times |
| interval of days | timedelta | durations |

Scalars of NumPy and pandas count as the Python type they correspond to: ``np.int64(1)`` is an int, ``pd.Timestamp`` a
datetime. Nothing is cut off or parsed, and nothing is rounded, except a float to the precision of a ``float``. NaN, NaT
and ``pd.NA`` are not null.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from pyspark_ckpt.state_store.errors import InvalidInputError

Convert: TypeAlias = Callable[[Any], Any]

CONVERT = (
    "Convert it to a value that the type accepts: nothing is rounded, cut off or parsed. "
    "docs/keyed-state.md has the table of types."
)
EXACT = Context(prec=76)
"""Computes exactly with decimals of 38 digits; Python's own context rounds to 28."""
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
NAIVE_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a timestamp_ntz has no zone
EPOCH_DAY = date(1970, 1, 1).toordinal()
MICROSECOND = timedelta(microseconds=1)
MICROSECOND_NS = 1000
_SINGLE = struct.Struct("<f")
_KINDS = 256
"""Of how many types it is remembered which values are converted exactly."""
_NOTHING = type(None)


def plain_writer(kind: pa.DataType) -> Convert:
    """Return a function that converts a value of a type that is not nested to the stored number, text or bytes.

    Dates become days, instants and intervals microseconds, times of day nanoseconds, decimals Decimals of the type's
    scale. The value must not be None. The function raises TypeError, ValueError or OverflowError for a value that the
    type does not accept.
    """
    if pa.types.is_decimal(kind):
        return _decimal_writer(kind)
    if pa.types.is_timestamp(kind):
        return microseconds_at if kind.tz else _naive_microseconds
    if pa.types.is_signed_integer(kind):
        return _integer_writer(kind.bit_width)
    for matches, convert in _WRITERS:
        if matches(kind):
            return convert
    raise InvalidInputError(f"Values of type {kind} cannot be kept as state.")


def find_plain_type(kind: pa.DataType) -> type | None:
    """Return the Python type whose values ``plain_writer`` never changes; None if there is no such type."""
    kept = ((pa.types.is_string, str), (pa.types.is_binary, bytes), (pa.types.is_float64, float))
    return next((same for matches, same in kept if matches(kind)), None)


def plain_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values as a column of a type that is not nested. Raises what ``plain_writer`` and pyarrow raise."""
    if set(map(type, values)) <= _same(kind) and not _has_zones(values, kind):
        column = pa.array(values, kind)
        if pa.types.is_float32(kind):
            _require_finite(values, column)
        return column
    write = _nothing if pa.types.is_null(kind) else plain_writer(kind)
    return _make_stored_column([None if value is None else write(value) for value in values], kind)


def whole_number(value: Any) -> int:
    """Return an integer of Python or NumPy as an int. Raises TypeError."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    raise TypeError(f"{_show(value)} is not an integer")


def microseconds_at(value: Any) -> int:
    """Return a datetime in microseconds since 1970; a naive one counts as UTC. Raises TypeError, ValueError."""
    if type(value) is not datetime:
        if isinstance(value, np.datetime64) and not _is_day(value):
            return _exact(value, "datetime64[us]")
        if not isinstance(value, datetime) or _is_not_a_time(value):
            raise TypeError(f"{_show(value)} is not an instant")
        _require_microseconds(value, "nanosecond")
    return int((value - (NAIVE_EPOCH if value.tzinfo is None else EPOCH)) // MICROSECOND)


def _naive_microseconds(value: Any) -> int:
    if getattr(value, "tzinfo", None) is not None:
        raise TypeError(f"{_show(value)} has a time zone, which timestamp_ntz does not accept")
    return microseconds_at(value)


def _day(value: Any) -> int:
    if isinstance(value, np.datetime64) and _is_day(value):
        days = _exact(value, "datetime64[D]")
        _require_bits(days, 32)
        return days
    if not isinstance(value, date) or isinstance(value, datetime):
        raise TypeError(f"{_show(value)} is not a date")
    return value.toordinal() - EPOCH_DAY


def _is_day(value: np.datetime64) -> bool:
    """Whether this is a date rather than an instant."""
    return np.datetime_data(value.dtype)[0] in {"Y", "M", "W", "D"}


def _interval(value: Any) -> int:
    if isinstance(value, np.timedelta64):
        return _exact(value, "timedelta64[us]")
    if not isinstance(value, timedelta) or _is_not_a_time(value):
        raise TypeError(f"{_show(value)} is not an interval")
    if type(value) is not timedelta:
        _require_microseconds(value, "nanoseconds")
    micros = value // MICROSECOND
    _require_bits(micros, 64)
    return micros


def _nanoseconds(value: Any) -> int:
    if not isinstance(value, time) or value.tzinfo is not None:
        raise TypeError(f"{_show(value)} is not a time of day without a zone")
    at = datetime.combine(NAIVE_EPOCH, value)
    return ((at - NAIVE_EPOCH) // MICROSECOND) * MICROSECOND_NS


def _is_not_a_time(value: Any) -> bool:
    """Whether this is pandas' NaT, an instance of datetime that does not equal itself."""
    return bool(value != value)  # noqa: PLR0124


def _require_microseconds(value: Any, nanoseconds: str) -> None:
    if getattr(value, nanoseconds, 0):
        raise ValueError(f"{_show(value)} has nanoseconds, but Spark keeps microseconds")


def _exact(value: Any, numpy_type: str) -> int:
    """Return a NumPy time as a number of another unit. Raises TypeError (no unit), ValueError (not exact)."""
    if np.datetime_data(value.dtype)[0] == "generic":
        raise TypeError(f"{_show(value)} has no unit")
    converted = value.astype(numpy_type)
    if np.isnat(value) or converted != value or converted.astype(value.dtype) != value:  # NumPy's numbers may wrap
        raise ValueError(f"{_show(value)} is not a whole number of units of {numpy_type} that fits into 64 bits")
    return int(converted.astype(np.int64))


def _integer_writer(bits: int) -> Convert:
    most = 1 << (bits - 1)

    def write(value: Any) -> int:
        number = value if type(value) is int else whole_number(value)
        if not -most <= number < most:
            raise ValueError(f"{number} does not fit into {bits} bits")
        return number

    return write


def _require_bits(number: int, bits: int) -> None:
    if not -1 << (bits - 1) <= number < 1 << (bits - 1):
        raise ValueError(f"{number} does not fit into {bits} bits")


def _double(value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, (float, np.floating)):
        number = float(value)
        if number != value and number == number:  # noqa: PLR0124 - only NaN does not equal itself
            raise ValueError(f"{_show(value)} has more digits than a double")
        return number
    whole = whole_number(value)
    number = float(whole)
    if int(number) != whole:
        raise ValueError(f"{whole} has more digits than a double")
    return number


def _single(value: Any) -> float:
    number = _double(value)
    single: float = _SINGLE.unpack(_SINGLE.pack(number))[0]  # raises OverflowError where it would become infinite
    if single != number and not isinstance(value, (float, np.floating)):
        raise ValueError(f"{_show(value)} has more digits than a float")
    return single


def _decimal_writer(kind: pa.DataType) -> Convert:
    step, most = Decimal(1).scaleb(-kind.scale), Decimal(10) ** (kind.precision - kind.scale)

    def write(value: Any) -> Decimal:
        if not isinstance(value, (Decimal, int, np.integer)) or isinstance(value, bool):
            raise ValueError(  # noqa: TRY004 - as for numbers that do not fit
                f"{_show(value)} does not fit into decimal({kind.precision},{kind.scale})"
            )
        number = value if isinstance(value, Decimal) else Decimal(int(value))
        if not number.is_finite() or number.copy_abs() >= most:
            raise ValueError(f"{value} does not fit into decimal({kind.precision},{kind.scale})")
        exact = number.quantize(step, context=EXACT)
        if exact != number:
            raise ValueError(f"{value} does not fit into decimal({kind.precision},{kind.scale})")
        return exact or exact.copy_abs()  # Arrow has one zero

    return write


def _text(value: Any) -> str:
    if type(value) is str:
        return value
    if not isinstance(value, str):
        raise TypeError(f"{_show(value)} is not text")
    return str.__str__(value)


def _binary(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{_show(value)} is not bytes")
    return bytes(value)


def _truth(value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{_show(value)} is not a bool")
    return bool(value)


def _nothing(value: Any) -> None:
    raise TypeError(f"{_show(value)} is not None, the only value of type void")


_WRITERS: tuple[tuple[Callable[[pa.DataType], bool], Convert], ...] = (
    (pa.types.is_string, _text),
    (pa.types.is_binary, _binary),
    (pa.types.is_boolean, _truth),
    (pa.types.is_float32, _single),
    (pa.types.is_floating, _double),
    (pa.types.is_date, _day),
    (pa.types.is_time, _nanoseconds),
    (pa.types.is_duration, _interval),
)
_SAME: tuple[tuple[Callable[[pa.DataType], bool], type], ...] = (
    (pa.types.is_string, str),
    (pa.types.is_binary, bytes),
    (pa.types.is_boolean, bool),
    (pa.types.is_signed_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_date, date),
    (pa.types.is_timestamp, datetime),
    (pa.types.is_duration, timedelta),
)
"""The Python type whose values pyarrow converts exactly as this module does."""


@lru_cache(maxsize=_KINDS)
def _same(kind: pa.DataType) -> frozenset[type]:
    return frozenset({_NOTHING, *(same for matches, same in _SAME if matches(kind))})


def _has_zones(values: Sequence[Any], kind: pa.DataType) -> bool:
    """Whether instants have zones that pyarrow cannot convert: any but UTC, or any at all for timestamp_ntz.

    Of other zones pyarrow loses offsets of less than a minute.
    """
    if not pa.types.is_timestamp(kind):
        return False
    zones = {None if value is None else value.tzinfo for value in values} - {None}
    return bool(zones - {timezone.utc} if kind.tz else zones)


def _require_finite(values: Sequence[Any], column: pa.Array) -> None:
    """Raise OverflowError if a finite number has become infinite."""
    infinite = np.flatnonzero(np.isinf(column.to_numpy(zero_copy_only=False)))
    for position in infinite.tolist():
        _single(values[position])


def _make_stored_column(stored: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return the column of values that ``plain_writer`` has made."""
    if pa.types.is_date(kind):
        return pa.array(stored, pa.int32()).view(kind)
    return pa.array(stored, pa.int64()).view(kind) if pa.types.is_temporal(kind) else pa.array(stored, kind)


def _show(value: Any) -> str:
    return f"{repr(value)[:200]} of type {type(value).__name__}"


WRONG_VALUE = (TypeError, ValueError, AttributeError, struct.error, ArithmeticError, pa.ArrowException)
"""What conversions and codecs raise for a value that a type does not accept."""
