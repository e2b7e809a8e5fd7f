"""Spark's rows in memory, as they come to a worker: where a value is null, nothing of it is read."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ckpt.operators.unsafe_rows import read_rows, row_reader

WIDE = pa.struct([(f"n{number}", pa.int64()) for number in range(8)])
DEEP = pa.struct([("wide", WIDE), ("text", pa.string())])


def row(*words: int) -> bytes:
    """A bitmap and words."""
    return struct.pack(f"<{len(words)}q", *words)


@pytest.mark.parametrize("kind", [WIDE, DEEP, pa.list_(WIDE), pa.map_(pa.string(), WIDE)], ids=str)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_null_of_many_fields_is_read_when_the_batch_is_small(kind: pa.DataType, count: int) -> None:
    schema = pa.schema([("user", pa.int64()), ("payload", kind)])
    found = read_rows([row(0b10, 7, 0)] * count, schema)
    assert found.to_pylist() == [{"user": 7, "payload": None}] * count
    assert row_reader(schema)(row(0b10, 7, 0)) == (7, None)


def test_a_null_of_many_fields_is_read_when_it_is_in_a_struct_or_an_array() -> None:
    in_struct = row(0, (16 << 32) | 24, 0b11, 0, 0)
    in_array = row(0, (16 << 32) | 24, 1, 0b1, 0)
    expected: list[tuple[pa.DataType, bytes, Any]] = [
        (DEEP, in_struct, {"wide": None, "text": None}),
        (pa.list_(WIDE), in_array, [None]),
    ]
    for kind, content, value in expected:
        assert read_rows([content], pa.schema([("payload", kind)])).to_pylist() == [{"payload": value}]
