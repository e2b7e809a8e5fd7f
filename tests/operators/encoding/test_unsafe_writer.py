"""Rows of any types are read as they were written."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ckpt.operators.encoding.unsafe_rows import read_rows
from pyspark_ckpt.operators.encoding.unsafe_writer import write_rows

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, None, False]),
    "tiny": (pa.int8(), [-1, None, 127]),
    "small": (pa.int16(), [-2, 300, None]),
    "number": (pa.int32(), [-3, None, 1 << 30]),
    "large": (pa.int64(), [None, -(1 << 62), 5]),
    "single": (pa.float32(), [1.5, None, -0.25]),
    "double": (pa.float64(), [None, float("inf"), 1e300]),
    "day": (pa.date32(), [19000, None, -5]),
    "at": (pa.timestamp("us", "UTC"), [1, None, -1]),
    "short": (pa.decimal128(18, 3), [Decimal("-1.5"), None, Decimal(12)]),
    "long": (pa.decimal128(38, 2), [Decimal("-123456789012345678901234567890.12"), None, Decimal("1.28")]),
    "text": (pa.string(), ["", None, "eleven chars, ünd mehr"]),
    "bytes": (pa.binary(), [b"12345678", None, b"\x00"]),
    "pair": (pa.struct([("a", pa.string()), ("b", pa.int16())]), [{"a": "x", "b": None}, None, {"a": None, "b": -1}]),
    "list": (pa.list_(pa.int16()), [[1, None, -3], None, []]),
    "texts": (pa.list_(pa.string()), [["a", None, "b" * 9], None, []]),
    "decimals": (pa.list_(pa.decimal128(30, 0)), [[Decimal(7), None], [], None]),
    "map": (pa.map_(pa.string(), pa.float64()), [[("a", 1.0), ("bb", None)], None, []]),
    "deep": (
        pa.list_(pa.struct([("m", pa.map_(pa.int8(), pa.list_(pa.bool_())))])),
        [[{"m": [(1, [True, None])]}, None, {"m": None}], None, []],
    ),
    "nothing": (pa.null(), [None, None, None]),
}


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_read_as_they_were_written(seed: int) -> None:
    choose = random.Random(seed)
    names = choose.sample(sorted(COLUMNS), choose.randrange(1, len(COLUMNS)))
    repeated = [f"{name}_{copy}" for copy in range(choose.choice([1, 1, 8])) for name in names]
    rows = choose.choice([0, 1, 40])
    columns = {}
    for name in repeated:
        kind, values = COLUMNS[name.rpartition("_")[0]]
        columns[name] = pa.array([choose.choice(values) for _ in range(rows + 3)], kind)
    table = pa.record_batch(list(columns.values()), names=list(columns)).slice(2, rows)
    written = write_rows(table.columns, rows)
    assert all(size % 8 == 0 for size in written.size.tolist())
    assert read_rows(written.strings(), table.schema).to_pylist() == table.to_pylist()


def test_columns_without_rows_give_none() -> None:
    columns = [pa.array([], kind) for kind, _ in COLUMNS.values()]
    assert len(write_rows(columns, 0)) == 0


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        # In a row, a long decimal has 16 bytes after the words, and so has a null, which keeps its place.
        (
            pa.array([Decimal(1)], pa.decimal128(38, 0)),
            "0000000000000000 0100000010000000 0100000000000000 00" + "00" * 7,
        ),
        (pa.array([None], pa.decimal128(38, 0)), "0100000000000000 0000000010000000" + "00" * 16),
        # In an array, it has whole words, and a null has none.
        (
            pa.array([[Decimal(1), None]], pa.list_(pa.decimal128(38, 0))),
            "0000000000000000 2800000010000000"
            + "0200000000000000" * 2
            + "0100000020000000"
            + "00" * 8
            + "01"
            + "00" * 7,
        ),
        (pa.array([-1], pa.int32()), "0000000000000000 ffffffff00000000"),
        (
            pa.array([[-1, None, 2]], pa.list_(pa.int16())),
            "0000000000000000 1800000010000000 0300000000000000 0200000000000000 ffff000002000000",
        ),
    ],
)
def test_bytes_are_those_of_sparks_writers(column: pa.Array, expected: str) -> None:
    (row,) = write_rows([column], 1).strings()
    assert row.hex() == bytes.fromhex(expected.replace(" ", "")).hex()
