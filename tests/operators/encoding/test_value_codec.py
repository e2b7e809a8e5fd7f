"""Bytes of values: every type comes back, whole columns have the bytes of single values."""

from __future__ import annotations

import math
from collections import namedtuple
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.operators.encoding.evolution import EvolvedCodec
from pyspark_ckpt.operators.encoding.value_codec import MessageCodec, PackedCodec, make_value_codec
from pyspark_ckpt.operators.types.columns import arrow_of_plain, arrow_values, python_values
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.operators.kinds import ALL, FAR


@pytest.mark.parametrize("name", ALL)
@given(data=st.data())
def test_values_come_back_from_their_bytes(name: str, data: st.DataObject) -> None:
    kind, values = ALL[name]
    value = data.draw(values)
    codec = make_value_codec(kind)
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize("name", ALL)
@given(data=st.data())
def test_columns_have_the_bytes_of_their_values_and_come_back(name: str, data: st.DataObject) -> None:
    kind, strategy = ALL[name]
    values = data.draw(st.lists(strategy, max_size=5))
    codec = make_value_codec(kind)
    column = arrow_values(values, kind)
    stored = codec.encode_packed(column).strings()
    assert stored == [codec.encode(value) for value in values]
    back = codec.decode_column([*stored, None])
    assert back.type == kind
    assert python_values(back) == [*values, None]
    cells = codec.encode_cells(arrow_values([None, *values], kind))
    assert cells.strings() == [None, *stored]
    assert codec.decode_cells(cells) == arrow_values([None, *values], kind)


@pytest.mark.parametrize("name", ALL)
@given(data=st.data())
def test_columns_with_nulls_keep_their_python_values(name: str, data: st.DataObject) -> None:
    kind, strategy = ALL[name]
    values = data.draw(st.lists(st.none() | strategy, max_size=6))
    column = arrow_values(values, kind)
    column.validate(full=True)
    assert python_values(column) == values
    assert python_values(column.slice(1)) == values[1:]


FAR_VALUES = {
    **FAR,
    "map<date,struct<timestamp,string>>": (
        pa.map_(pa.date32(), pa.struct([("t", pa.timestamp("us", "UTC")), ("s", pa.string())])),
        st.dictionaries(FAR["date"][1], st.tuples(FAR["timestamp"][1], st.text(max_size=2)), max_size=3),
    ),
    "struct<struct<date not null,string not null>>": (
        pa.struct([("s", pa.struct([pa.field("d", pa.date32(), nullable=False), pa.field("t", pa.string(), False)]))]),
        st.tuples(st.none() | st.tuples(FAR["date"][1], st.text(max_size=2))),
    ),
}


@pytest.mark.parametrize("name", FAR_VALUES)
@given(data=st.data())
def test_columns_hold_dates_and_instants_that_python_does_not_have(name: str, data: st.DataObject) -> None:
    kind, strategy = FAR_VALUES[name]
    column = arrow_of_plain(data.draw(st.lists(strategy, max_size=5)), kind)
    codec = make_value_codec(kind)
    stored = codec.encode_packed(column).strings()
    assert codec.decode_column(stored) == column
    assert codec.decode_cells(codec.encode_cells(column)) == column
    for value, each in zip(stored, column, strict=True):
        try:
            held = each.as_py()
        except (ValueError, OverflowError):
            with pytest.raises(InvalidInputError, match=r"'far' has the (date|instant) .*, which Python cannot hold"):
                make_value_codec(kind, whose="state 'far'").decode(value)
        else:
            assert codec.encode(dict(held) if pa.types.is_map(kind) else held) == value


def test_a_former_schema_with_a_date_that_python_does_not_have_is_read_in_columns() -> None:
    old = pa.struct([("d", pa.date32()), ("n", pa.int32()), ("s", pa.string())])
    new = pa.struct([("d", pa.date32()), ("n", pa.int64())])
    stored = make_value_codec(old).encode_packed(arrow_of_plain([(2932897, 1, "x"), (-719529, 2, "y")], old)).strings()
    codec = EvolvedCodec([old, new], 2, {})
    assert codec.decode_column([*stored, None]) == arrow_of_plain([(2932897, 1), (-719529, 2), None], new)


def test_booleans_are_booleans() -> None:
    pair = pa.struct([("a", pa.bool_()), ("b", pa.bool_())])
    assert make_value_codec(pa.bool_()).decode(make_value_codec(pa.bool_()).encode(True)) is True
    assert [*map(type, make_value_codec(pair).decode(make_value_codec(pair).encode((True, False))))] == [bool, bool]


def test_numbers_are_packed_and_everything_else_is_msgpack() -> None:
    assert isinstance(make_value_codec(pa.int64()), PackedCodec)
    assert isinstance(make_value_codec(pa.struct([("n", pa.int64()), ("d", pa.float32())])), PackedCodec)
    assert isinstance(make_value_codec(pa.struct([("n", pa.int64()), ("s", pa.string())])), MessageCodec)
    assert isinstance(make_value_codec(pa.struct([])), MessageCodec)
    assert make_value_codec(pa.int64()).encode(-2).hex() == "0101feffffffffffffff"
    assert make_value_codec(pa.string()).encode("é").hex() == "01a2c3a9"


def test_what_is_not_a_number_stays_so() -> None:
    codec = make_value_codec(pa.float64())
    assert math.isnan(codec.decode(codec.encode(math.nan)))
    assert codec.decode_column([codec.encode(math.nan), None]).null_count == 1
    assert math.copysign(1, codec.decode(codec.encode(-0.0))) == -1


@dataclass
class Point:
    """A struct as a user may write it."""

    x: int
    y: str | None


_Pair = namedtuple("_Pair", "x y")  # noqa: PYI024 - what users write


@pytest.mark.parametrize(
    "value", [(1, None), [1, None], {"x": 1, "y": None}, {"y": None, "x": 1}, Point(1, None), _Pair(1, None)]
)
def test_a_struct_may_be_any_thing_that_has_its_fields(value: Any) -> None:  # noqa: ANN401
    codec = make_value_codec(pa.struct([("x", pa.int32()), ("y", pa.string())]))
    decoded = codec.decode(codec.encode(value))
    assert decoded == (1, None)
    assert decoded.x == 1


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int32(), 2**31),
        (pa.int64(), 2**63),
        (pa.int64(), 1.0),
        (pa.int64(), "1"),
        (pa.float64(), "x"),
        (pa.string(), b"x"),
        (pa.string(), 1),
        (pa.binary(), "x"),
        (pa.bool_(), "true"),
        (pa.date32(), datetime(2024, 1, 1, tzinfo=timezone.utc)),
        (pa.timestamp("us", "UTC"), 5),
        (pa.decimal128(4, 2), "123.4"),
        (pa.decimal128(4, 2), "1.234"),
        (pa.struct([("x", pa.int32()), ("s", pa.string())]), (1,)),
        (pa.struct([("x", pa.int32()), ("s", pa.string())]), {"z": 1}),
        (pa.struct([("x", pa.int32())]), {"z": 1}),
        (pa.list_(pa.int32()), 3),
        (pa.list_(pa.string()), "ab"),
        (pa.list_(pa.string()), {"ab": 1}),
        (pa.list_(pa.int32()), b"ab"),
        (pa.map_(pa.string(), pa.int32()), [1]),
    ],
)
def test_a_value_of_another_type_is_an_error(kind: pa.DataType, value: object) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError, OverflowError)):
        make_value_codec(kind).encode(value)


def test_text_is_no_array_of_its_letters_in_a_column() -> None:
    with pytest.raises(TypeError, match="'ab' is not an array"):
        arrow_values([["ab"], "ab"], pa.list_(pa.string()))
