"""Rows are put into groups by their keys, in stored order, also where different keys have one hash."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_ckpt.operators.encoding.distinct_keys import group_by_key
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.encoding.suffixes import behind_hash
from pyspark_ckpt.state_store.errors import InvalidInputError

NAN = float("nan")
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bigint": (pa.int64(), [None, -(2**63), -1, 0, 1, 2**63 - 1, *range(50)]),
    "boolean": (pa.bool_(), [None, False, True]),
    "double": (pa.float64(), [None, NAN, -0.0, 0.0, 1.5, float("inf"), -2.0]),
    "string": (pa.string(), [None, "", "a", "ab", "a\0", "é", *map(str, range(40))]),
    "binary": (pa.binary(), [None, b"", b"\0", b"a", b"\0a"]),
    "struct": (pa.struct([("n", pa.int32()), ("t", pa.string())]), [None, {"n": None, "t": ""}, {"n": 1, "t": "a"}]),
}


def check(columns: list[pa.Array], hashes: list[int]) -> None:
    names = [f"k{n}" for n in range(len(columns))]
    codec = KeyCodec([column.type for column in columns])
    rows = pa.table(dict(zip(names, columns, strict=True)))
    keys, index, order = group_by_key(rows, names, codec, np.array(hashes, np.int32))
    encoded = [behind_hash(h, key) for h, key in zip(hashes, codec.encode_columns(columns), strict=True)]
    stored = sorted(set(encoded))
    assert list(keys.suffixes) == stored
    assert [stored[at] for at in index.tolist()] == encoded
    assert order.tolist() == sorted(range(len(encoded)), key=lambda row: encoded[row])
    again = codec.encode_columns([keys.column(name).combine_chunks() for name in names])
    assert again == [suffix[4:] for suffix in stored]


@pytest.mark.parametrize("kinds", [[each] for each in VALUES] + [["bigint", "string"], ["double", "boolean", "struct"]])
@pytest.mark.parametrize("distinct_hashes", [1, 3, 2**32])
def test_groups_are_those_of_a_dictionary(kinds: list[str], distinct_hashes: int) -> None:
    draw = random.Random(f"{kinds} {distinct_hashes}")
    for rows in (0, 1, 2, 7, 300):
        chosen = [[draw.choice(VALUES[kind][1]) for _ in range(rows)] for kind in kinds]
        columns = [pa.array(values, VALUES[kind][0]) for kind, values in zip(kinds, chosen, strict=True)]
        codec = KeyCodec([column.type for column in columns])
        of_key: dict[bytes, int] = {}
        hashes = [
            of_key.setdefault(key, draw.randrange(distinct_hashes) - (distinct_hashes // 2))
            for key in codec.encode_columns(columns)
        ]
        check(columns, hashes)


def test_few_keys_of_one_hash_among_many_others() -> None:
    draw = random.Random(3)
    numbers = [draw.randrange(5000) for _ in range(20_000)]
    check([pa.array(numbers)], [number * 7919 % 2**31 // 2 * 2 if number < 20 else number % 4900 for number in numbers])


def test_a_text_that_is_not_utf_8_is_refused_by_its_column() -> None:
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"]).buffers())
    with pytest.raises(InvalidInputError, match=r"Key user: .* not UTF-8, b'\\xff\\xfe'.* the type binary"):
        group_by_key(pa.table({"user": bad}), ["user"], KeyCodec([pa.string()]), np.zeros(1, np.int32))
