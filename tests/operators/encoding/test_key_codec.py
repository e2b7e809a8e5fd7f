"""Bytes of keys: in the order of the keys, none the beginning of another, whole columns as single values."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.operators.encoding.key_codec import KeyCodec, argsort, normalise
from pyspark_ckpt.operators.types.columns import arrow_of_plain, arrow_values
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.operators.kinds import FAR, ORDERED


def rank(value: Any) -> Any:  # noqa: ANN401
    """What Python compares as Spark compares the value: null first, text by its bytes."""
    if value is None:
        return (0,)
    if isinstance(value, (list, tuple)):
        return (1, [rank(each) for each in value])
    return (1, value.encode() if isinstance(value, str) else value)


@pytest.mark.parametrize("name", ORDERED)
@given(data=st.data())
def test_bytes_sort_as_the_keys_and_none_begins_another_one(name: str, data: st.DataObject) -> None:
    kind, values = ORDERED[name]
    codec = KeyCodec([kind])
    left, right = data.draw(st.none() | values), data.draw(st.none() | values)
    a, b = codec.encode((left,)), codec.encode((right,))
    if left == right:
        assert a == b
    else:
        assert (a < b) == (rank(left) < rank(right))
        assert not a.startswith(b)
        assert not b.startswith(a)


@pytest.mark.parametrize("name", ORDERED)
@given(data=st.data())
def test_keys_come_back_from_their_bytes(name: str, data: st.DataObject) -> None:
    kind, values = ORDERED[name]
    codec = KeyCodec([kind, pa.string()])
    key = (data.draw(st.none() | values), data.draw(st.text(max_size=3)))
    stored = codec.encode(key)
    assert codec.decode(stored) == key
    assert codec.read(b"....." + stored + b"behind", 5) == (key, 5 + len(stored))


@pytest.mark.parametrize("name", ORDERED)
@given(data=st.data())
def test_columns_have_the_bytes_of_their_values(name: str, data: st.DataObject) -> None:
    kind, values = ORDERED[name]
    column = data.draw(st.lists(st.none() | values, max_size=5))
    codec = KeyCodec([kind, pa.int32()])
    numbers = list(range(len(column)))
    stored = codec.encode_columns([arrow_values(column, kind), pa.array(numbers, pa.int32())])
    assert stored == [codec.encode(key) for key in zip(column, numbers, strict=True)]


@pytest.mark.parametrize("name", FAR)
@given(data=st.data())
def test_columns_hold_dates_and_instants_that_python_does_not_have(name: str, data: st.DataObject) -> None:
    kind, strategy = FAR[name]
    values = data.draw(st.lists(st.none() | strategy, max_size=5))
    column = arrow_of_plain(values, kind)
    codec = KeyCodec([kind], "a key of the map 'far'")
    stored = codec.encode_columns([column])
    assert codec.decode_columns(stored) == [column]
    assert sorted(stored) == [stored[n] for n in sorted(range(len(values)), key=lambda n: rank(values[n]))]
    for key, each in zip(stored, column, strict=True):
        try:
            held = each.as_py()
        except (ValueError, OverflowError):
            with pytest.raises(InvalidInputError, match=r"the map 'far' has the (date|instant) .* Python cannot hold"):
                codec.decode(key)
        else:
            assert codec.encode((held,)) == key


def test_zeroes_are_one_key_and_all_that_is_not_a_number_is_one_behind_infinity() -> None:
    codec = KeyCodec([pa.float64()])
    column = pa.array([0.0, -0.0, math.nan, -math.nan, math.inf], from_pandas=False)
    zero, minus_zero, nan, minus_nan, infinity = codec.encode_columns([column])
    assert zero == minus_zero
    assert nan == minus_nan > infinity
    assert codec.encode_columns([normalise(column)]) == [zero, zero, nan, nan, infinity]
    assert math.copysign(1, normalise(column)[1].as_py()) == 1


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ORDERED)
@given(data=st.data())
def test_rows_are_in_the_order_of_their_columns_and_equal_ones_as_they_came(name: str, data: st.DataObject) -> None:
    kind, values = ORDERED[name]
    column = data.draw(st.lists(st.none() | values, max_size=6))
    numbers = data.draw(st.lists(st.integers(0, 1), min_size=len(column), max_size=len(column)))
    rows = [(number, rank(value)) for number, value in zip(numbers, column, strict=True)]
    for first in (pa.int8(), pa.float32()):  # Arrow sorts by the first, and codecs sort by what follows the second
        found = argsort([pa.array(numbers, first), arrow_values(column, kind)])
        assert found.tolist() == sorted(range(len(rows)), key=rows.__getitem__)


def test_numbers_are_in_sparks_order() -> None:
    column = pa.array([math.nan, 0.0, None, -math.inf, -math.nan, -0.0, math.inf, 0.0], from_pandas=False)
    assert argsort([column]).tolist() == [2, 3, 1, 5, 7, 6, 0, 4]


@pytest.mark.parametrize("kind", [pa.map_(pa.string(), pa.int64()), pa.list_(pa.map_(pa.string(), pa.int64()))])
def test_a_map_in_a_key_is_refused_by_its_type(kind: pa.DataType) -> None:
    with pytest.raises(InvalidInputError, match="map<string, int64"):
        KeyCodec([kind])


@pytest.mark.parametrize(
    ("kind", "value"),
    [(pa.int8(), 128), (pa.int64(), 1.5), (pa.string(), b"bytes"), (pa.decimal128(5, 2), Decimal("1.234"))],
)
def test_a_value_of_another_type_is_an_error(kind: pa.DataType, value: object) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError)):
        KeyCodec([kind]).encode((value,))
