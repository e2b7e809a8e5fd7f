"""Types by their names, and values as JSON has them."""

from __future__ import annotations

import json
import re
from datetime import time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ckpt.offline.reading.keys.json_values import from_json, json_values
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.encoding.spark_hash import SparkHash
from pyspark_ckpt.operators.encoding.value_codec import make_value_codec
from pyspark_ckpt.operators.types.columns import arrow_values, python_values
from pyspark_ckpt.operators.types.type_names import arrow_type_named
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from tests.operators.kinds import ALL, ORDERED

DEEP = pa.struct([("a: b", pa.list_(pa.struct([("x", pa.int8()), ("y", pa.decimal128(9, 2))]))), ("c", pa.string())])


@pytest.mark.parametrize("kind", [kind for kind, _ in ORDERED.values()])
def test_the_type_of_a_key_is_found_by_its_name(kind: pa.DataType) -> None:
    required = pa.struct([pa.field("each", kind, nullable=False), ("list", pa.list_(pa.field("element", kind)))])
    for each in (kind, required):
        assert arrow_type_named(str(each)) == each


def test_a_name_that_is_none_of_a_type_is_refused() -> None:
    for name in (
        "",
        "int63",
        "list<element: string",
        "struct<a>",
        "int64 >",
        "decimal128(99, 1)",
        "struct<" * 3000,
        str(DEEP),
    ):
        with pytest.raises(FormatError, match="not the type of a key"):
            arrow_type_named(name)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_values_are_json_and_keys_are_read_back(name: str, data: st.DataObject) -> None:
    kind, drawn = ALL[name]
    values = data.draw(st.lists(st.none() | drawn, max_size=4))
    shown = json.loads(json.dumps(json_values(arrow_values(values, kind)), allow_nan=False))
    assert [value is None for value in shown] == [value is None for value in values]
    if name in ORDERED:
        codec = KeyCodec([kind])
        assert [codec.encode([from_json(value, kind)]) for value in shown] == [
            codec.encode([value]) for value in values
        ]


BEYOND: list[tuple[pa.DataType, int]] = [
    (pa.date32(), 2_932_897),  # 10000-01-01
    (pa.date32(), -719_163),  # the day before 0001-01-01
    (pa.timestamp("us"), 2**62),
    (pa.timestamp("us", "UTC"), -(2**62)),
    (pa.time64("ns"), 999),
]


@pytest.mark.parametrize(("kind", "number"), BEYOND)
def test_a_value_that_python_does_not_have_is_a_number_in_json_and_refused_as_python(
    kind: pa.DataType, number: int
) -> None:
    width = pa.int32() if pa.types.is_date(kind) else pa.int64()
    column = pa.array([0, number, None], width).view(kind)
    listed = pa.ListArray.from_arrays([0, 3], column)
    assert json_values(column)[1:] == [number, None]
    assert json_values(listed) == [json_values(column)]
    for each in (column, listed):
        with pytest.raises(InvalidInputError, match=f"a value of type {re.escape(str(kind))} that Python cannot hold"):
            python_values(each)


@pytest.mark.parametrize("at", [time(0), time(23, 59, 59, 999_999), time(1, 2, 3)])
def test_a_time_of_day_is_kept_looked_up_and_shown(at: time) -> None:
    kind = pa.time64("ns")
    column = pa.array([at, None], kind)
    assert python_values(column) == [at, None]
    shown, nothing = json_values(column)
    assert (from_json(shown, kind), nothing) == (at, None)
    assert arrow_type_named(str(kind)) == kind
    for values in (make_value_codec(kind), make_value_codec(pa.list_(kind))):
        stored = at if values.kind == kind else [at]
        assert values.decode(values.encode(stored)) == stored
        assert python_values(values.decode_column([values.encode(stored)])) == [stored]
    codec = KeyCodec([kind])
    assert codec.decode(codec.encode([at])) == (at,)
    assert codec.encode_columns([column])[0] == codec.encode([at])


def test_a_time_of_day_has_sparks_hash() -> None:
    """That of hash(to_time('01:02:03.456789'))."""
    assert SparkHash([pa.time64("ns")])([time(1, 2, 3, 456_789)]) == 1_767_366_308


def test_an_array_is_a_tuple_in_the_keys_of_a_dict() -> None:
    inner = pa.struct([("words", pa.list_(pa.string()))])
    kind = pa.map_(inner, pa.int64())
    value = {(("a", "b"),): 1, (None,): 2}
    assert python_values(arrow_values([value], kind)) == [value]
    codec = make_value_codec(kind)
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("x", pa.date32()),
        ("25:00", pa.time64("ns")),
        (5, pa.timestamp("us", "UTC")),
        ("!", pa.binary()),
        ({"z": 1}, pa.struct([("a", pa.int64())])),
    ],
)
def test_json_of_another_type_is_refused(value: Any, kind: pa.DataType) -> None:  # noqa: ANN401
    with pytest.raises(InvalidInputError, match="is not the JSON of"):
        from_json(value, kind)
