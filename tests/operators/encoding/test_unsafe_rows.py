"""Spark's rows in memory, as they come to a worker: where a value is null, nothing of it is read."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ckpt.operators.encoding.unsafe_rows import read_rows, row_reader
from pyspark_ckpt.operators.types.columns import has_variant, python_values
from pyspark_ckpt.operators.types.stored_types import arrow_type

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


VARIANT = arrow_type("variant")
VARIANTS = [(bytes([n]) * n, b"\x01\x00" + bytes(n % 3)) for n in range(1, 9)]


def variant(value: bytes, metadata: bytes) -> bytes:
    return struct.pack("<i", len(value)) + value + metadata


def behind(at: int, *contents: bytes) -> tuple[list[int], bytes]:
    """Words that point to bytes after the words, from ``at``, and these bytes."""
    words, stored = [], b""
    for content in contents:
        words.append((at + len(stored)) << 32 | len(content))
        stored += content + bytes(-len(content) % 8)
    return words, stored


def test_variants_of_any_size_are_read() -> None:
    rows = [row(0, *words) + stored for words, stored in (behind(16, variant(*each)) for each in VARIANTS)]
    found = read_rows([*rows, row(1, 0)], pa.schema([("v", VARIANT)])).column(0)
    found.validate(full=True)
    assert python_values(found) == [*VARIANTS, None]


def test_variants_in_structs_arrays_and_maps_are_read() -> None:
    first, second = VARIANTS[2], VARIANTS[3]
    words, stored = behind(24, variant(*first), variant(*second))
    struct_row = row(0, *words) + stored
    words, stored = behind(40, variant(*first), variant(*second))
    array = row(3, 0b10, words[0], 0, words[1]) + stored
    keys = row(3, 0, 1, 2, 3)
    in_map = row(0, (16 << 32) | (8 + len(keys) + len(array)), len(keys)) + keys + array
    expected: list[tuple[pa.DataType, bytes, Any]] = [
        (
            pa.struct([("a", VARIANT), ("b", VARIANT)]),
            row(0, (16 << 32) | len(struct_row)) + struct_row,
            (first, second),
        ),
        (pa.list_(VARIANT), row(0, (16 << 32) | len(array)) + array, [first, None, second]),
        (pa.map_(pa.int64(), VARIANT), in_map, {1: first, 2: None, 3: second}),
    ]
    for kind, content, value in expected:
        assert has_variant(kind)
        column = read_rows([content], pa.schema([("payload", kind)])).column(0)
        column.validate(full=True)
        assert python_values(column) == [value]


@pytest.mark.parametrize("content", [b"\x01\x00", struct.pack("<i", 9) + bytes(8), struct.pack("<i", -1) + bytes(4)])
def test_a_variant_whose_sizes_are_wrong_is_refused(content: bytes) -> None:
    words, stored = behind(16, content)
    with pytest.raises(ValueError, match="variant"):
        read_rows([row(0, *words) + stored], pa.schema([("v", VARIANT)]))
