"""Operators with several inputs, without Spark: types that are not quite alike, methods, memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt import testing
from pyspark_ckpt.operators.declarations.operator import Input, KeyedOperator
from pyspark_ckpt.operators.task.arrivals import Arrivals
from pyspark_ckpt.operators.task.row_buffer import RowBuffer
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.testing.given_rows import read_rows

OUTPUT = "what string, n int"


class Told(ckpt.KeyedProcessor):
    """Outputs which input a row came from."""

    def process_left(self, _ctx: ckpt.Context, _key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        """Outputs left."""
        yield from (("left", row.n) for row in rows)

    def process_right(self, _ctx: ckpt.Context, _key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        """Outputs right."""
        yield from (("right", row.n) for row in rows)


def two_inputs(columns: str = "k int, n int") -> Any:  # noqa: ANN401
    """Two inputs that are alike."""
    return {name: testing.InputColumns(columns, by="k") for name in ("left", "right")}


@pytest.mark.parametrize("order", ["n", "a"])
def test_inputs_merge_although_only_one_has_parts_that_are_not_null(order: str) -> None:
    loose = "k struct<x:int>, n int, a array<struct<y:int>>"
    strict = loose.replace(":int", ":int not null")
    connected = testing.keyed_inputs(
        merge=True,
        left=testing.InputColumns(strict, by="k", order_by=order),
        right=testing.InputColumns(loose, by="k", order_by=order),
    )
    with connected.process(Told(), OUTPUT) as harness:
        rows = harness.run(left=[((1,), 1, [(1,)]), ((1,), 3, [(3,)])], right=[((1,), 2, [(2,)]), ((None,), 4, [None])])
        assert [row for row in rows if row.n < 4] == [("left", 1), ("right", 2), ("left", 3)]
        assert ("right", 4) in rows


@pytest.mark.parametrize("name", ["process_late", "process_late_order"])
def test_a_method_for_late_rows_that_nothing_calls_is_refused(name: str) -> None:
    stray = type("Stray", (Told,), {name: Told.process_left})
    with pytest.raises(InvalidInputError, match=rf"Stray has a method {name}\(\), which nothing calls"):
        testing.keyed_inputs(**two_inputs()).process(stray(), OUTPUT)
    right = type("Right", (Told,), {"process_late_left": Told.process_left})
    testing.keyed_inputs(**two_inputs()).process(right(), OUTPUT).close()


def test_errors_name_the_operator() -> None:
    with pytest.raises(InvalidInputError, match=r"keyed_inputs\(uid='tested'\): the initial state has a column 'm'"):
        testing.keyed_inputs(**two_inputs()).process(
            Told(), OUTPUT, initial_state=testing.Rows("k int, m int", [(1, 1)])
        )
    with pytest.raises(InvalidInputError, match="merge must be True or False, got 'no'"):
        testing.keyed_inputs(**two_inputs(), merge="no")  # type: ignore[arg-type]


def test_all_inputs_share_the_memory_for_rows(tmp_path: Path) -> None:
    columns, limit = pa.schema([("k", pa.int32()), ("text", pa.string())]), 1 << 16
    inputs = tuple(Input(name, ("k",), columns) for name in "abcdefgh")
    operator = KeyedOperator("it", inputs, columns, (), 1, 8, "", has_watermark=False, memory_bytes=limit)
    arrivals = Arrivals(operator, lambda rows, name: RowBuffer(rows, limit, tmp_path / name), None, limit)
    held: list[int] = []

    def rows() -> Iterator[tuple[int, Any]]:
        for number in range(200):
            held.append(sum(each.buffer.held_bytes for each in arrivals.all))
            yield number % 8, read_rows([(number, "x" * 1000)], columns, ["k"], None, "The row")

    arrivals.fill(rows(), 0)
    assert max(held) <= limit
    assert arrivals.count == 200
    for each in arrivals.all:
        each.buffer.seal()
    found = [each.buffer.take(number) for each in arrivals.all for number in range(64)]
    assert sorted(np.concatenate([table.column("k").to_numpy() for table in found])) == list(range(200))
    arrivals.close()
