"""Rows of several inputs in one order, against plain Python."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from pyspark_ckpt.operators.declarations.operator import Input
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.task.merging import Merged

INPUTS = [
    Input(name, (key,), pa.schema([(key, pa.string()), (order, pa.int64())]), (order,))
    for name, key, order in (("a", "user", "at"), ("b", "payer", "paid_at"), ("c", "who", "seen_at"))
]
Row = tuple[int, int, int]
"""What it is ordered by, the number of its input, and its position there."""


@pytest.mark.parametrize("seed", range(50))
def test_a_key_gets_its_rows_of_all_inputs_in_one_order(seed: int) -> None:
    draw = random.Random(seed)
    given, expected = [], dict[str, list[Row]]()
    for number, each in enumerate(INPUTS[: draw.randint(1, 3)]):
        rows = [(draw.choice("xyz"), draw.randrange(6)) for _ in range(draw.randint(1, 12))]
        table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=each.columns)
        given.append((each, table, np.array([ord(key) for key, _ in rows], np.int32)))
        for place, (key, order) in enumerate(rows):
            expected.setdefault(key, []).append((order, number, place))
    merged = Merged.of(given, ("user",), KeyCodec([pa.string()]))
    keys = merged.keys.column("user").to_pylist()
    order_of = [table.column(1).to_pylist() for _, table, _ in given]
    found, in_rounds = dict[str, list[Row]](), dict[str, list[Row]]()
    for of_key, number, place in zip(merged.of_key, merged.inputs, merged.places, strict=True):
        found.setdefault(keys[of_key], []).append((order_of[number][place], int(number), int(place)))
    for number, places, of_keys in merged.rounds():
        for place, of_key in zip(places, of_keys, strict=True):
            in_rounds.setdefault(keys[of_key], []).append((order_of[number][place], number, int(place)))
    assert found == in_rounds == {key: sorted(rows) for key, rows in expected.items()}


def test_a_run_ends_where_another_input_follows() -> None:
    hashes = np.zeros(3, np.int32)
    tables = [
        pa.table([["x"] * 3, at], schema=each.columns) for each, at in zip(INPUTS, ([1, 2, 6], [3, 4, 5]), strict=False)
    ]
    merged = Merged.of(
        [(each, table, hashes) for each, table in zip(INPUTS, tables, strict=False)], ("user",), KeyCodec([pa.string()])
    )
    assert merged.runs.tolist() == [0, 2, 5]
    assert [(number, places.tolist()) for number, places, _ in merged.rounds()] == [
        (0, [0, 1]),
        (1, [0, 1, 2]),
        (0, [2]),
    ]
