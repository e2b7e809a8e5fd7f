"""Checks the rows of a savepoint before its target is touched: a mistake leaves nothing there."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa

from pyspark_ckpt.offline.writing.drafts.store_draft import GivenRows, StoreDraft, is_spark_frame, require_not_streaming
from pyspark_ckpt.offline.writing.functions.key_pairs import AllKeyPairs
from pyspark_ckpt.offline.writing.functions.sent_function import raising_as_functions_do
from pyspark_ckpt.offline.writing.given_columns import WrittenState
from pyspark_ckpt.offline.writing.given_rows import change_batches, is_kept, list_given
from pyspark_ckpt.offline.writing.tasks import make_encoder
from pyspark_ckpt.operators.types.value_types import make_handed_schema
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace


def look_at_rows(stores: Sequence[StoreDraft], partitions: int, workplace: Workplace) -> None:
    """Check the columns and types of all given rows, and the values of those that are in memory.

    If rows can be read only once, or functions change them, the first batch is checked. Of a Spark frame, only the
    columns are checked. ``partitions``: of the savepoint.

    Raises InvalidInputError (rows that do not fit their state), and what a function raises.
    """
    now_ms = round(time.time() * 1000)
    for store in stores:
        for name, given in store.written.items():
            if isinstance(given, GivenRows):
                state = store.find_written(name, now_ms, partitions)
                store.written[name] = _look(given, state, workplace)


def _look(given: GivenRows, state: WrittenState, workplace: Workplace) -> GivenRows:
    """Check rows, and return the same rows: those that can be read once are read in part, and put together again."""
    if is_spark_frame(given.rows):
        _look_at_frame(given, state)
        return given
    encoder = make_encoder(state)
    if is_kept(given.rows) and not given.steps:
        for batch in list_given(given.rows):
            encoder.prepare(pa.Table.from_batches([batch]))
        return given
    batches = list_given(given.rows)
    first = next(batches, None)
    if first is None:
        return given
    for changed in _change(first, given, state, workplace):
        encoder.prepare(pa.Table.from_batches([changed]))
    return given if is_kept(given.rows) else replace(given, rows=chain([first], batches))


def _look_at_frame(given: GivenRows, state: WrittenState) -> None:
    frame: Any = given.rows
    require_not_streaming(frame)
    if not given.steps:
        make_encoder(state).prepare(make_handed_schema(frame.schema).empty_table())


def _change(
    batch: pa.RecordBatch, given: GivenRows, state: WrittenState, workplace: Workplace
) -> Iterator[pa.RecordBatch]:
    with workplace.folder() as folder, AllKeyPairs.below(folder) as pairs, raising_as_functions_do():
        yield from change_batches([batch], given, state, pairs)
