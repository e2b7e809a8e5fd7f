"""Rows of output in batches, which are bounded by rows and by bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ckpt.operators import Context, KeyedProcessor
from pyspark_ckpt.operators.declarations.operator import Input, KeyedOperator
from pyspark_ckpt.operators.rows.base import Position
from pyspark_ckpt.operators.task.processor_calls import OUTPUT_BYTES, OUTPUT_ROWS, ProcessorCalls

OUTPUT = pa.schema([("n", pa.int64()), ("text", pa.string())])


class Nothing(KeyedProcessor):
    """Is not called."""

    def process(self, _ctx: Context, _key: Any, _rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        """No rows."""
        return iter(())


@pytest.fixture
def work() -> ProcessorCalls:
    """For output of numbers and text."""
    operator = KeyedOperator("it", (Input("", ("n",), OUTPUT),), OUTPUT, (), 1, 1, "", False, 1 << 20)
    return ProcessorCalls(operator, Nothing(), Context(0, 0, 0, -1), Position())


def rows(count: int, size: int) -> Iterator[list[tuple[int, str]]]:
    """Results of 100 rows each."""
    return ([(n, "x" * size) for n in range(begin, begin + 100)] for begin in range(0, count, 100))


@pytest.mark.parametrize(("count", "size"), [(150_000, 1), (3000, 20_000), (400, 300_000)])
@pytest.mark.parametrize("kind", ["packed", "shaped"])
def test_batches_of_output_are_bounded_by_rows_and_bytes(
    kind: str, count: int, size: int, work: ProcessorCalls
) -> None:
    if kind == "packed":
        batches = list(work._pack("process", rows(count, size)))
    else:
        given = [row for result in rows(count, size) for row in result]
        table = pa.table(list(zip(*given, strict=True)), schema=OUTPUT)
        batches = list(work._shape("process_batch", table))
    assert [n for batch in batches for n in batch["n"].to_pylist()] == list(range(count))
    assert max(map(len, batches)) <= OUTPUT_ROWS
    assert max(len(batch.serialize()) for batch in batches) <= OUTPUT_BYTES * 1.1
    assert len(batches) <= 3 + count // OUTPUT_ROWS + count * size // (OUTPUT_BYTES // 2), "nor are they many"


def test_small_rows_before_large_ones_do_not_make_a_large_batch(work: ProcessorCalls) -> None:
    def results() -> Iterator[list[tuple[int, str]]]:
        yield from rows(70_000, 1)
        yield from rows(2000, 50_000)

    batches = list(work._pack("process", results()))
    assert sum(map(len, batches)) == 72_000
    assert max(len(batch.serialize()) for batch in batches) <= 2 * OUTPUT_BYTES
