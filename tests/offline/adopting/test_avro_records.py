"""Spark's rows as Avro: what is written is read again, and damage is an error."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ckpt.offline.adopting.avro_records import count_decimal_bytes, read_records, refuse_columns, write_records
from pyspark_ckpt.state_store.errors import InvalidInputError

_INSTANT = pa.timestamp("us", "UTC")
KINDS = {
    "flag": pa.bool_(),
    "tiny": pa.int8(),
    "small": pa.int16(),
    "number": pa.int32(),
    "big": pa.int64(),
    "single": pa.float32(),
    "double": pa.float64(),
    "text": pa.string(),
    "content": pa.binary(),
    "day": pa.date32(),
    "at": _INSTANT,
    "money": pa.decimal128(9, 2),
    "much": pa.decimal128(38, 10),
    "nothing": pa.null(),
    "numbers": pa.list_(pa.int64()),
    "lists": pa.list_(pa.list_(pa.string())),
    "words": pa.map_(pa.string(), pa.struct([("n", pa.int32()), ("when", _INSTANT)])),
    "deep": pa.struct([("a", pa.struct([("b", pa.list_(pa.struct([("c", pa.float64())])))])), ("none", pa.null())]),
}
FIELDS = [pa.field(name, kind) for name, kind in KINDS.items()]


def _draw(draw: random.Random, kind: pa.DataType, *, may_be_null: bool = True) -> Any:  # noqa: ANN401 - any value
    if pa.types.is_null(kind) or (may_be_null and draw.random() < 0.2):
        return None
    return _draw_nested(draw, kind) if pa.types.is_nested(kind) else _draw_plain(draw, kind)


def _draw_nested(draw: random.Random, kind: pa.DataType) -> Any:  # noqa: ANN401 - any value
    if pa.types.is_struct(kind):
        return {field.name: _draw(draw, field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(f"k{n}", _draw(draw, kind.item_type)) for n in range(draw.randrange(4))]
    inner = kind.value_type
    return [_draw(draw, inner, may_be_null=pa.types.is_nested(inner)) for _ in range(draw.randrange(4))]


def _draw_plain(draw: random.Random, kind: pa.DataType) -> Any:  # noqa: ANN401 - any value
    if kind in (pa.bool_(), pa.string(), pa.binary()):
        values: dict[pa.DataType, list[Any]] = {
            pa.bool_(): [True, False],
            pa.string(): ["", "é€𝄞", "x" * draw.randrange(200)],
        }
        return draw.choice(values.get(kind, [b"", draw.randbytes(draw.randrange(80))]))
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return Decimal(f"{draw.choice([0, most, -most, draw.randrange(-most, most)])}e-{kind.scale}")
    if pa.types.is_floating(kind):
        return draw.choice([0.0, -0.0, float("inf"), 1.5, -2.25])
    if pa.types.is_date(kind):
        return dt.date(1970, 1, 1) + dt.timedelta(draw.randrange(-700_000, 700_000))
    bits = kind.bit_width
    number = draw.choice([0, -1, 1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), draw.randrange(-100, 100)])
    return pa.scalar(number, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else number


def _columns(draw: random.Random, count: int) -> list[pa.Array]:
    return [pa.array([_draw(draw, field.type) for _ in range(count)], field.type) for field in FIELDS]


@pytest.mark.parametrize("count", [0, 1, 200])
def test_columns_of_all_types_are_read_as_they_were_written(count: int) -> None:
    columns = _columns(random.Random(count), count)
    refuse_columns(FIELDS, "the state")
    found = read_records(FIELDS, write_records(columns, count).strings())
    for field, column, read in zip(FIELDS, columns, found, strict=True):
        read.validate(full=True)
        assert read.type == field.type
        assert read.equals(column), field.name


def test_the_bytes_are_those_of_avro() -> None:
    columns = [
        pa.array([-1], pa.int32()),
        pa.array(["é"]),
        pa.array([None], pa.int64()),
        pa.array([[1, 300]], pa.list_(pa.int64())),
        pa.array([Decimal("-1.00")], pa.decimal128(5, 2)),
        pa.array([1.5], pa.float64()),
    ]
    (record,) = write_records(columns, 1).strings()
    # a union's branch before each; the count of the array's block; three bytes of a decimal of 5 digits
    assert record.hex() == "0201" + "0204c3a9" + "00" + "020402d80400" + "02ffff9c" + "02000000000000f83f"


def test_an_array_in_several_blocks_is_read() -> None:
    field = pa.field("numbers", pa.list_(pa.int64()))
    # a block of two; one of -1, with its bytes; the end
    assert read_records([field], [bytes.fromhex("02" + "040204" + "010206" + "00")])[0].to_pylist() == [[1, 2, 3]]


def test_damage_is_an_error_and_takes_no_memory() -> None:
    draw = random.Random(7)
    records = write_records(_columns(draw, 40), 40).strings()
    refused = 0
    for _ in range(300):
        record = bytearray(draw.choice(records))
        if draw.random() < 0.3:
            record = record[: draw.randrange(len(record))]
        else:
            record[draw.randrange(len(record))] ^= 1 << draw.randrange(8)
        try:
            read_records(FIELDS, [*records[:3], bytes(record)])
        except (ValueError, pa.ArrowException):
            refused += 1
    assert refused > 100
    for claim in ("02" + "ff" * 9 + "01", "02" + "fe" * 10, "04", "02", "0201"):
        with pytest.raises((ValueError, pa.ArrowException)):
            read_records([pa.field("numbers", pa.list_(pa.int64()))], [bytes.fromhex(claim)])


def test_what_spark_has_no_avro_for_is_refused() -> None:
    for kind in (pa.duration("us"), pa.map_(pa.int32(), pa.int32()), pa.list_(pa.null())):
        with pytest.raises(InvalidInputError, match="the state: Spark has no Avro for column 'x'"):
            refuse_columns([pa.field("x", pa.struct([("inner", kind)]))], "the state")
    with pytest.raises(InvalidInputError, match="has a null among elements"):
        write_records([pa.array([[1, None]])], 1)


@pytest.mark.parametrize(("precision", "size"), [(1, 1), (2, 1), (3, 2), (9, 4), (18, 8), (19, 9), (38, 16)])
def test_decimals_have_as_many_bytes_as_spark_gives_them(precision: int, size: int) -> None:
    assert count_decimal_bytes(precision) == size
