"""Types by their names, and values as JSON has them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ckpt.operators.columns import arrow_values
from pyspark_ckpt.operators.stored_keys import KeyCodec
from pyspark_ckpt.reading.json_values import from_json, json_values
from pyspark_ckpt.reading.type_names import arrow_type_named
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
        with pytest.raises(FormatError, match="none of a key"):
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


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("x", pa.date32()),
        (5, pa.timestamp("us", "UTC")),
        ("!", pa.binary()),
        ({"z": 1}, pa.struct([("a", pa.int64())])),
    ],
)
def test_json_of_another_type_is_refused(value: Any, kind: pa.DataType) -> None:  # noqa: ANN401
    with pytest.raises(InvalidInputError, match="no JSON of"):
        from_json(value, kind)
