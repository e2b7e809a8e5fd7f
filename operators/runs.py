"""Calls of a processor for the keys of some rows, one after the other or all at once, and the rows that come out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.columns import arrow_values, python_values
from pyspark_ckpt.operators.processors import Context, KeyedProcessor, VectorContext, VectorProcessor
from pyspark_ckpt.operators.value_types import struct_class
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.keys import Keys
    from pyspark_ckpt.operators.plan import Operator
    from pyspark_ckpt.operators.state_rows import Position

KEYS_AT_ONCE = 8192
OUTPUT_ROWS = 65536


@dataclass(frozen=True)
class Work:
    """What all calls of a task share. ``processor`` has its states bound; ``position`` tells them the current key."""

    operator: Operator
    processor: KeyedProcessor | VectorProcessor
    context: Context
    position: Position

    def run(self, keys: Keys, index: NDArray[np.int64], rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """The output for ``rows``, whose distinct keys are ``keys``; ``index``: the position of every row's key."""
        if isinstance(self.processor, VectorProcessor):
            return _vectorised(self, self.processor, keys, index, rows)
        return _one_by_one(self, self.processor, keys, index, rows)


def _vectorised(
    work: Work, processor: VectorProcessor, keys: Keys, index: NDArray[np.int64], rows: pa.Table
) -> Iterator[pa.RecordBatch]:
    work.position.upcoming = keys.suffixes
    told = VectorContext(**vars(work.context), keys=keys, key_index=index)
    result = processor.process_batch(told, rows)
    if result is not None:
        yield from _shaped(work.operator, processor, result).to_batches(max_chunksize=OUTPUT_ROWS)


def _shaped(operator: Operator, processor: VectorProcessor, result: pa.Table) -> pa.Table:
    """The result with exactly the output's columns."""
    who = f"{type(processor).__name__}.process_batch() of keyed operator {operator.uid!r}"
    if not isinstance(result, pa.Table):
        raise InvalidInputError(f"{who} returned {type(result).__name__}, not a pyarrow.Table.")
    if sorted(result.column_names) != sorted(operator.output.names):
        raise InvalidInputError(f"{who} returned columns {result.column_names}, not {operator.output.names}.")
    try:
        return result.select(operator.output.names).cast(operator.output).combine_chunks()
    except pa.ArrowException as problem:
        raise InvalidInputError(f"{who} returned values that are not of the output's types: {problem}") from problem


def _one_by_one(
    work: Work, processor: KeyedProcessor, keys: Keys, index: NDArray[np.int64], rows: pa.Table
) -> Iterator[pa.RecordBatch]:
    order = np.argsort(index, kind="stable")
    ends = np.cumsum(np.bincount(index, minlength=len(keys)))
    sorted_rows = rows.take(pa.array(order))
    make = struct_class(pa.struct(list(rows.schema)))._make
    process, position, context = processor.process, work.position, work.context
    out: list[Sequence[Any]] = []
    for begin in range(0, len(keys), KEYS_AT_ONCE):
        end = min(begin + KEYS_AT_ONCE, len(keys))
        position.upcoming = keys.suffixes[begin:end]
        first = int(ends[begin - 1]) if begin else 0
        part = sorted_rows.slice(first, int(ends[end - 1]) - first)
        columns = [python_values(column.combine_chunks()) for column in part.columns]
        of_keys = list(map(make, zip(*columns, strict=True)))
        at = 0
        stops = (ends[begin:end] - first).tolist()
        for suffix, key, stop in zip(position.upcoming, keys.to_python(begin, end), stops, strict=True):
            position.suffix = suffix
            result = process(context, key, of_keys[at:stop])
            if result is not None:
                remaining = iter(result)
                out.extend(islice(remaining, OUTPUT_ROWS))
                while len(out) >= OUTPUT_ROWS:
                    yield _packed(work.operator, processor, out)
                    out = list(islice(remaining, OUTPUT_ROWS))
            at = stop
    if out:
        yield _packed(work.operator, processor, out)


def _packed(operator: Operator, processor: KeyedProcessor, out: Sequence[Any]) -> pa.RecordBatch:
    try:
        return pa.RecordBatch.from_struct_array(arrow_values(out, pa.struct(list(operator.output))))
    except (TypeError, ValueError, AttributeError) as problem:
        raise InvalidInputError(
            f"{type(processor).__name__}.process() of keyed operator {operator.uid!r} yielded rows that are not "
            f"{dict(zip(operator.output.names, map(str, operator.output.types), strict=True))}: {problem}"
        ) from problem
