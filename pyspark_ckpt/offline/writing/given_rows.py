"""The rows that a user gives for a state, in any of the forms that a table has, as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa

from pyspark_ckpt.offline.reading.reader import StateReader
from pyspark_ckpt.offline.writing.drafts.store_draft import GivenRows, StoredRows
from pyspark_ckpt.offline.writing.functions.key_pairs import AllKeyPairs
from pyspark_ckpt.offline.writing.functions.steps import change_rows
from pyspark_ckpt.offline.writing.given_columns import WrittenState
from pyspark_ckpt.operators.types.exact_columns import decode_column
from pyspark_ckpt.state_store.errors import InvalidInputError

BATCH_ROWS = 65_536
BATCH_BYTES = 4 << 20
UNKNOWN_BYTES = 1 << 30
"""The assumed size of rows whose size is unknown until they are read."""


def guess_bytes(rows: object) -> int:
    """Return about how much memory rows take."""
    return rows.nbytes if isinstance(rows, (pa.Table, pa.RecordBatch)) else UNKNOWN_BYTES


OpenState: TypeAlias = Callable[[StoredRows], StateReader]
"""Opens a state of the source."""


def list_batches(
    given: GivenRows | StoredRows, open_source: OpenState, target: WrittenState, pairs: AllKeyPairs
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``target`` in batches, changed by their steps; ``pairs`` gets the keys that change.

    Raises InvalidInputError (no rows, or a function that returns none), and what reading raises.
    """
    if isinstance(given, StoredRows):
        with open_source(given) as state:
            yield from change_batches(state.batches(), given, target, pairs)
    else:
        yield from change_batches(list_given(given.rows), given, target, pairs)


def change_batches(
    batches: Iterable[pa.RecordBatch], given: GivenRows | StoredRows, target: WrittenState, pairs: AllKeyPairs
) -> Iterator[pa.RecordBatch]:
    """Yield rows as the steps of ``given`` leave them; see ``list_batches``."""
    if not given.steps:
        yield from batches
        return
    for rows in change_rows(batches, given.steps, target, pairs, are_shown=isinstance(given, StoredRows)):
        yield from _part(rows)


def list_given(rows: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - see writing.Put
    """Yield rows in batches. Raises InvalidInputError (they are none)."""
    if isinstance(rows, (pa.Table, pa.RecordBatch)):
        yield from _part(pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows)
        return
    if _is_pandas(rows):
        try:
            table = pa.Table.from_pandas(rows, preserve_index=False)
        except (pa.ArrowException, TypeError, ValueError) as problem:
            raise InvalidInputError(
                f"A pandas frame cannot become an Arrow table: {problem}.", hint="Give its columns types."
            ) from problem
        yield from _part(table)
        return
    if hasattr(rows, "__arrow_c_stream__") and not isinstance(rows, pa.RecordBatchReader):
        rows = pa.RecordBatchReader.from_stream(rows)
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        raise InvalidInputError(
            f"Rows are given as {repr(rows)[:200]} of type {type(rows).__name__}.",
            hint="Give an Arrow table, a reader or batches, a frame of Spark, pandas or polars, or whatever else has "
            "__arrow_c_stream__().",
        )
    is_empty = True
    for batch in _read(rows):
        is_empty = False
        if not isinstance(batch, pa.RecordBatch):
            raise InvalidInputError(
                f"Rows have {repr(batch)[:200]} of type {type(batch).__name__} instead of an Arrow batch.",
                hint="Give an Arrow table: pyarrow.Table.from_pylist(rows).",
            )
        yield from _part(pa.Table.from_batches([batch]))
    if is_empty and isinstance(rows, (Iterator, pa.RecordBatchReader)):
        raise InvalidInputError(
            f"Rows are given as {repr(rows)[:200]}, which has no batches: it is empty, or was read before.",
            hint="Give a new reader. For a state without rows, give an empty table.",
        )


def _read(rows: Iterable[Any]) -> Iterator[Any]:
    """Yield what is given. Raises InvalidInputError (an Arrow reader or stream fails)."""
    given = iter(rows)
    while True:
        try:
            batch = next(given)
        except StopIteration:
            return
        except (pa.ArrowException, OSError) as problem:
            raise InvalidInputError(
                f"Rows are given as {repr(rows)[:200]}, which cannot be read to its end: {problem}.",
                hint="Mend the source of the rows, and give a new reader.",
            ) from problem
        yield batch


def is_kept(rows: object) -> bool:
    """Whether rows are in memory, and can be read again."""
    return isinstance(rows, (pa.Table, pa.RecordBatch)) or _is_pandas(rows)


def _is_pandas(rows: object) -> bool:
    return type(rows).__module__.startswith("pandas.") and hasattr(rows, "columns")


def _part(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield a table in batches of at most BATCH_ROWS rows and about BATCH_BYTES; one without rows if it has none."""
    table = _decode(table)
    if not len(table):
        yield pa.RecordBatch.from_pylist([], schema=table.schema)
        return
    rows = max(1, min(BATCH_ROWS, len(table) * BATCH_BYTES // max(1, table.nbytes)))
    for begin in range(0, len(table), rows):
        yield from table.slice(begin, rows).combine_chunks().to_batches()


def _decode(table: pa.Table) -> pa.Table:
    """Return a table with dictionary and run-end encoded columns as their values, which every batch may share."""
    for place, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type) or pa.types.is_run_end_encoded(column.type):
            chunks = list(map(decode_column, column.chunks))
            kind = chunks[0].type if chunks else column.type.value_type
            table = table.set_column(place, table.column_names[place], pa.chunked_array(chunks, kind))
    return table
