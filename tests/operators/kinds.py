"""Arrow types of every kind that Spark has, each with a strategy for its values."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

_EXACT = Context(prec=76)
_YEAR_1, _YEAR_9999 = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001


def _integers(bits: int) -> SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def _decimals(precision: int, scale: int) -> SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda unscaled: Decimal(unscaled).scaleb(-scale, _EXACT))


_NAIVE = st.datetimes(_YEAR_1, _YEAR_9999)

PLAIN: Mapping[str, tuple[pa.DataType, SearchStrategy[Any]]] = {
    "boolean": (pa.bool_(), st.booleans()),
    "tinyint": (pa.int8(), _integers(8)),
    "smallint": (pa.int16(), _integers(16)),
    "int": (pa.int32(), _integers(32)),
    "bigint": (pa.int64(), _integers(64)),
    "float": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "date": (pa.date32(), st.dates(date(1, 1, 1), date(9999, 12, 31))),
    "timestamp": (pa.timestamp("us", "UTC"), _NAIVE.map(lambda value: value.replace(tzinfo=timezone.utc))),
    "timestamp_ntz": (pa.timestamp("us"), _NAIVE),
    "interval": (pa.duration("us"), _integers(63).map(lambda value: timedelta(microseconds=value))),
    "string": (pa.string(), st.text(max_size=12)),
    "binary": (pa.binary(), st.binary(max_size=12)),
    "decimal(9,2)": (pa.decimal128(9, 2), _decimals(9, 2)),
    "decimal(38,10)": (pa.decimal128(38, 10), _decimals(38, 10)),
}


def _listed(name: str) -> tuple[pa.DataType, SearchStrategy[Any]]:
    kind, values = PLAIN[name]
    return pa.list_(kind), st.lists(st.none() | values, max_size=3)


def _paired(first: str, second: str) -> tuple[pa.DataType, SearchStrategy[Any]]:
    kind = pa.struct([("first", PLAIN[first][0]), ("second", PLAIN[second][0])])
    return kind, st.tuples(st.none() | PLAIN[first][1], st.none() | PLAIN[second][1])


ORDERED: Mapping[str, tuple[pa.DataType, SearchStrategy[Any]]] = {
    **PLAIN,
    "array<string>": _listed("string"),
    "array<bigint>": _listed("bigint"),
    "struct<int,double>": _paired("int", "double"),
    "struct<string,binary>": _paired("string", "binary"),
}
"""What can be part of a key."""

ALL: Mapping[str, tuple[pa.DataType, SearchStrategy[Any]]] = {
    **ORDERED,
    "map<string,bigint>": (
        pa.map_(pa.string(), pa.int64()),
        st.dictionaries(PLAIN["string"][1], st.none() | PLAIN["bigint"][1], max_size=3),
    ),
    "array<struct>": (
        pa.list_(_paired("bigint", "string")[0]),
        st.lists(st.none() | _paired("bigint", "string")[1], max_size=3),
    ),
}

_DAYS, _MICROS = _integers(32), _integers(64)
_DAY, _AT = pa.date32(), pa.timestamp("us", "UTC")
FAR: Mapping[str, tuple[pa.DataType, SearchStrategy[Any]]] = {
    "date": (_DAY, _DAYS),
    "timestamp": (_AT, _MICROS),
    "timestamp_ntz": (pa.timestamp("us"), _MICROS),
    "struct<date,timestamp>": (pa.struct([("d", _DAY), ("t", _AT)]), st.tuples(_DAYS, st.none() | _MICROS)),
    "struct<string,date>": (pa.struct([("s", pa.string()), ("d", _DAY)]), st.tuples(st.text(max_size=2), _DAYS)),
    "array<timestamp>": (pa.list_(_AT), st.lists(st.none() | _MICROS, max_size=3)),
}
"""Types with dates and instants, as numbers of days and microseconds: Spark has all of them, Python few."""
