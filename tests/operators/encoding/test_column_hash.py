"""Hashes of many keys at once are those of single keys, which are Spark's."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
from collections.abc import Callable

import pyarrow as pa

from pyspark_ckpt.operators.encoding.column_hash import hash_columns
from pyspark_ckpt.operators.encoding.spark_hash import SparkHash
from pyspark_ckpt.operators.types.columns import python_values

KINDS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.bool_(), pa.float32(), pa.float64(), pa.null()),
    *(pa.string(), pa.binary(), pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")),
    *(pa.decimal128(10, 2), pa.decimal128(38, 3), pa.list_(pa.int64())),
    pa.struct([("a", pa.int32()), ("b", pa.string())]),
]
_DAY = dt.timedelta(days=1)
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a time zone is added where the type has one


_MAKERS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, random.Random], object]]] = [
    (pa.types.is_null, lambda _kind, _draw: None),
    (
        pa.types.is_integer,
        lambda kind, draw: draw.choice([0, -1, 2 ** (kind.bit_width - 1) - 1, draw.randint(-99, 99)]),
    ),
    (pa.types.is_boolean, lambda _, draw: draw.random() < 0.5),
    (pa.types.is_floating, lambda _, draw: draw.choice([0.0, -0.0, math.nan, math.inf, -math.inf, -draw.random()])),
    (pa.types.is_string, lambda _, draw: "".join(draw.choice("aé日\0z") for _ in range(draw.randint(0, 9)))),
    (pa.types.is_binary, lambda _, draw: draw.randbytes(draw.randint(0, 9))),
    (pa.types.is_date32, lambda _, draw: _EPOCH.date() + draw.randint(-5000, 20_000) * _DAY),
    (pa.types.is_timestamp, lambda kind, draw: _instant(kind, draw.randint(-(10**14), 10**15))),
    (pa.types.is_decimal, lambda kind, draw: decimal.Decimal(draw.randint(-(10**9), 10**9)).scaleb(-kind.scale)),
    (pa.types.is_list, lambda kind, draw: [_draw(kind.value_type, draw) for _ in range(draw.randint(0, 3))]),
    (pa.types.is_struct, lambda kind, draw: {field.name: _draw(field.type, draw) for field in kind}),
]


def _draw(kind: pa.DataType, draw: random.Random) -> object:
    one = next(make for is_kind, make in _MAKERS if is_kind(kind))
    return None if draw.random() < 0.2 else one(kind, draw)


def _instant(kind: pa.DataType, micros: int) -> dt.datetime:
    at = _EPOCH + dt.timedelta(microseconds=micros)
    return at if kind.tz is None else at.replace(tzinfo=dt.timezone.utc)


def test_keys_have_the_hashes_that_they_have_one_by_one() -> None:
    draw = random.Random(3)
    for _ in range(100):
        kinds = draw.choices(KINDS, k=draw.randint(0, 4))
        columns = [pa.array([_draw(kind, draw) for _ in range(40)], kind) for kind in kinds]
        one = SparkHash(kinds)
        expected = [one(key) for key in zip(*map(python_values, columns), strict=True)] if kinds else [42] * 40
        assert hash_columns(columns, 40).tolist() == expected
        assert hash_columns([column.slice(7, 20) for column in columns], 20).tolist() == expected[7:27]
