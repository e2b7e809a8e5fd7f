"""Values of Spark's whose schema has evolved, as columns of the present schema."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pyspark_ckpt.offline.reading.rows.evolved_values import change_type, decode_evolved

_OLD = pa.struct(
    {
        "n": pa.int32(),
        "list": pa.list_(pa.struct({"x": pa.int32()})),
        "map": pa.map_(pa.string(), pa.int32()),
        "gone": pa.string(),
    }
)
_NEW = pa.struct(
    {
        "map": pa.map_(pa.string(), pa.int64()),
        "list": pa.list_(pa.struct({"y": pa.string(), "x": pa.int64()})),
        "n": pa.float64(),
        "added": pa.string(),
    }
)


def test_fields_are_found_by_name_and_widened_when_the_type_changes() -> None:
    column = pa.array(
        [
            {"n": 1, "list": [{"x": 3}, None], "map": [("k", 2)], "gone": "z"},
            {"n": None, "list": None, "map": None, "gone": None},
            None,
            {"n": 5, "list": [], "map": [], "gone": "q"},
            {"n": 6, "list": [{"x": 4}], "map": [("a", None), ("b", 7)], "gone": "q"},
        ],
        _OLD,
    )
    changed = change_type(column, _NEW)
    changed.validate(full=True)
    assert changed.to_pylist() == [
        {"map": [("k", 2)], "list": [{"y": None, "x": 3}, None], "n": 1.0, "added": None},
        {"map": None, "list": None, "n": None, "added": None},
        None,
        {"map": [], "list": [], "n": 5.0, "added": None},
        {"map": [("a", None), ("b", 7)], "list": [{"y": None, "x": 4}], "n": 6.0, "added": None},
    ]


def _decode(fields: list[pa.Field], rows: Any) -> list[pa.Array]:  # noqa: ANN401 - bytes
    """One column of numbers: the first byte of each row."""
    return [pa.array([row[0] for row in rows], fields[0].type)]


def test_each_value_is_read_by_the_schema_that_wrote_it() -> None:
    schemas = [[pa.field("n", pa.int32())], [pa.field("n", pa.int64()), pa.field("m", pa.string())]]
    values = [b"\0\1\7", b"\0\0\5", b"\0\1\6", b"\0\0\4"]

    def decode(fields: list[pa.Field], rows: Any) -> list[pa.Array]:  # noqa: ANN401 - bytes
        return _decode(fields, rows) + [pa.array(["m"] * len(rows)) for _ in fields[1:]]

    numbers, texts = decode_evolved(schemas, values, decode)
    assert numbers.to_pylist() == [7, 5, 6, 4]
    assert texts.to_pylist() == ["m", None, "m", None]
    assert [column.to_pylist() for column in decode_evolved(schemas, [], decode)] == [[], []]


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\2\7", b"\xff\xff\7"])
def test_a_value_of_an_unknown_schema_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="its state has 1 schemas"):
        decode_evolved([[pa.field("n", pa.int32())]], [value], _decode)
