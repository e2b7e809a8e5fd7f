"""Rows of a test as a keyed operator gets them: Arrow columns with the hash of the key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.declarations.operator import Input
from pyspark_ckpt.operators.encoding.spark_hash import SparkHash
from pyspark_ckpt.operators.types.columns import arrow_values, python_values
from pyspark_ckpt.operators.types.conversions import CONVERT, WRONG_VALUE
from pyspark_ckpt.operators.types.value_types import get_fields, no_null
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.key_groups import HASHES

if TYPE_CHECKING:
    from numpy.typing import NDArray

RowsLike: TypeAlias = "Iterable[Any] | pa.Table"
"""Tuples, mappings or objects with the columns as fields; or a pandas frame; or an Arrow table."""
NEVER_LATE_US = 2**63 - 1
"""The event time of rows that have none."""


@dataclass(frozen=True)
class GivenRows:
    """Rows of one input. ``hashes``: the unsigned hash of each key; ``event_us``: each event time, since 1970."""

    columns: pa.RecordBatch
    hashes: NDArray[np.uint32]
    event_us: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.columns)

    def are_after(self, instant_us: int) -> NDArray[np.bool_]:
        """See ``arrivals.Rows``."""
        after: NDArray[np.bool_] = self.event_us > instant_us
        return after

    def where(self, chosen: NDArray[np.bool_]) -> GivenRows:
        """See ``arrivals.Rows``."""
        return GivenRows(self.columns.filter(pa.array(chosen)), self.hashes[chosen], self.event_us[chosen])

    def batches(self, given: Input) -> Iterator[pa.RecordBatch]:
        """See ``arrivals.Rows``."""
        hashes = pa.array(self.hashes.view(np.int32))
        yield pa.RecordBatch.from_arrays([*self.columns.columns, hashes], schema=given.rows)

    def partitions(self, partitions: int, max_parallelism: int) -> NDArray[np.int64]:
        """Return the partition of each row."""
        groups = (self.hashes.astype(np.uint64) * np.uint64(max_parallelism)) // np.uint64(HASHES)
        found: NDArray[np.int64] = (groups * np.uint64(partitions) // np.uint64(max_parallelism)).astype(np.int64)
        return found


def read_rows(rows: object, columns: pa.Schema, by: Sequence[str], event_time: str | None, who: str) -> GivenRows:
    """Return what a test gives: a sequence of rows, a pandas frame or an Arrow table. Raises InvalidInputError."""
    batch = _read_columns(rows, columns, who)
    keys = zip(*(python_values(batch.column(name)) for name in by), strict=True)
    make_hash = SparkHash([columns.field(name).type for name in by])
    hashes = np.array([make_hash(key) for key in keys], np.uint32)
    event_us = np.full(len(batch), NEVER_LATE_US, np.int64)
    if event_time is not None:
        column = batch.column(event_time).cast(pa.int64())
        known = column.is_valid().to_numpy(zero_copy_only=False)
        event_us[known] = column.fill_null(0).to_numpy()[known]
    return GivenRows(batch, hashes, event_us)


def _read_columns(rows: object, columns: pa.Schema, who: str) -> pa.RecordBatch:
    names: list[str] = columns.names
    given = _list_rows(rows, names, who)
    kind = pa.struct(list(columns))
    try:
        if any(row is None for row in given):
            raise TypeError("a row is None")
        return pa.RecordBatch.from_struct_array(arrow_values(given, kind))
    except WRONG_VALUE as problem:
        for place, row in enumerate(given):
            _check_row(row, columns, f"{who}, row {place}")
        raise InvalidInputError(f"{who}: the rows do not fit the columns {kind}: {problem}.", hint=CONVERT) from problem


def _list_rows(rows: Any, names: Sequence[str], who: str) -> list[Any]:  # noqa: ANN401 - whatever a test gives
    if hasattr(rows, "column_names") or hasattr(rows, "iloc"):
        return list(_rows_of_frame(rows, names, who))
    if isinstance(rows, (str, bytes, Mapping)) or not hasattr(rows, "__iter__"):
        raise InvalidInputError(f"{who}: {repr(rows)[:200]} is not a sequence of rows.", hint=_HINT)
    return list(rows)


def _rows_of_frame(frame: Any, names: Sequence[str], who: str) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401 - of pandas or Arrow
    table = pa.Table.from_pandas(frame, preserve_index=False) if hasattr(frame, "iloc") else frame
    if missing := [name for name in names if name not in table.column_names]:
        raise InvalidInputError(f"{who}: there are no columns {missing}, only {table.column_names}.")
    return zip(*(python_values(table.column(name).combine_chunks()) for name in names), strict=True)


def _check_row(row: object, columns: pa.Schema, who: str) -> None:
    """Raise InvalidInputError, naming the column, for a row that does not fit."""
    try:
        values = get_fields(row, columns.names)
    except WRONG_VALUE as problem:
        raise InvalidInputError(
            f"{who}: {repr(row)[:200]} does not fit the columns {columns.names}: {problem}.", hint=_HINT
        ) from problem
    for field, value in zip(columns, values, strict=True):
        try:
            if value is None and not field.nullable:
                raise TypeError(no_null(field))
            arrow_values([(value,)], pa.struct([field]))
        except WRONG_VALUE as problem:
            raise InvalidInputError(
                f"{who}: column {field.name!r} is of type {field.type}, but {repr(value)[:200]} is of type "
                f"{type(value).__name__}: {problem}.",
                hint=CONVERT,
            ) from problem


_HINT = "Give a list of tuples or dicts with these columns, a pandas frame or an Arrow table."
