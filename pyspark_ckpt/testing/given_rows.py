"""Rows of a test as a keyed operator gets them: Arrow columns with the hash of the key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.declarations.operator import NEVER_LATE, Input
from pyspark_ckpt.operators.encoding.spark_hash import SparkHash
from pyspark_ckpt.operators.types.columns import arrow_values, find_misfit, python_values
from pyspark_ckpt.operators.types.conversions import CONVERT, WRONG_VALUE
from pyspark_ckpt.operators.types.struct_values import get_fields
from pyspark_ckpt.state_store.errors import InternalError, InvalidInputError
from pyspark_ckpt.state_store.format.key_groups import find_keyed_partition

if TYPE_CHECKING:
    from numpy.typing import NDArray

RowsLike: TypeAlias = "Iterable[Any] | pa.Table"
"""Tuples, mappings or objects with the columns as fields; or a pandas frame; or an Arrow table."""


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

    def table(self, _given: Input, others: Sequence[GivenRows]) -> pa.Table:
        """See ``arrivals.BroadcastRows``: a test gives them in one order."""
        if others:
            raise InternalError("The rows of the broadcast input come to a harness at once.")
        return pa.Table.from_batches([self.columns])

    def partitions(self, partitions: int, max_parallelism: int) -> NDArray[np.int64]:
        """Return the partition of each row."""
        return find_keyed_partition(self.hashes.astype(np.int64), partitions, max_parallelism)


def read_rows(rows: object, columns: pa.Schema, by: Sequence[str], event_time: str | None, who: str) -> GivenRows:
    """Return what a test gives: a sequence of rows, a pandas frame or an Arrow table. Raises InvalidInputError."""
    batch = read_columns(rows, columns, who)
    keys = zip(*(python_values(batch.column(name)) for name in by), strict=True)
    make_hash = SparkHash([columns.field(name).type for name in by])
    hashes = np.array([make_hash(key) for key in keys], np.uint32) if by else np.zeros(len(batch), np.uint32)
    event_us = np.full(len(batch), NEVER_LATE, np.int64)
    if event_time is not None:
        column = batch.column(event_time).cast(pa.int64())
        known = column.is_valid().to_numpy(zero_copy_only=False)
        event_us[known] = column.fill_null(0).to_numpy()[known]
    return GivenRows(batch, hashes, event_us)


def read_columns(rows: object, columns: pa.Schema, who: str) -> pa.RecordBatch:
    """Return what a test gives as columns. Raises InvalidInputError."""
    try:
        given = list_rows(rows)
    except InvalidInputError as problem:
        raise InvalidInputError(f"{who}: {problem.message}", hint=problem.hint) from problem
    kind = pa.struct(list(columns))
    try:
        if any(row is None for row in given):
            raise TypeError("None is not a row")
        return pa.RecordBatch.from_struct_array(arrow_values(given, kind))
    except WRONG_VALUE as problem:
        for place, row in enumerate(given):
            _check_row(row, columns, f"{who}, row {place}")
        raise InvalidInputError(f"{who}: the rows do not fit the columns {kind}: {problem}.", hint=CONVERT) from problem


def list_rows(rows: Any) -> list[Any]:  # noqa: ANN401 - whatever a test gives
    """Return rows as a list; those of a frame or table as dicts. Raises InvalidInputError."""
    table = _read_table(rows)
    if table is not None:
        names: list[str] = table.column_names
        if len(set(names)) < len(names):
            raise InvalidInputError(f"A table has several columns of one name: {names}.")
        columns = [python_values(column.combine_chunks()) for column in table.columns]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    if isinstance(rows, (str, bytes, Mapping)) or not hasattr(rows, "__iter__") or hasattr(rows, "iloc"):
        raise InvalidInputError(f"{repr(rows)[:200]} is not a sequence of rows.", hint=_HINT)
    return list(rows)


def _read_table(rows: Any) -> pa.Table | None:  # noqa: ANN401 - as list_rows
    """Return a frame of pandas, or a table or batch of Arrow, as a table; None for other rows."""
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if not hasattr(rows, "iloc") or not hasattr(rows, "columns"):
        return None
    columns = [rows.iloc[:, place] for place in range(rows.shape[1])]
    arrays = [pa.array(each.to_numpy() if each.dtype.kind == "f" else each) for each in columns]  # NaN is not null
    return pa.Table.from_arrays(arrays, names=list(map(str, rows.columns)))


def _check_row(row: object, columns: pa.Schema, who: str) -> None:
    """Raise InvalidInputError, naming the column, for a row that does not fit."""
    try:
        if row is None:
            raise TypeError("it is not a row")
        values = get_fields(row, tuple(columns.names))
    except WRONG_VALUE as problem:
        raise InvalidInputError(
            f"{who}: {repr(row)[:200]} does not fit the columns {columns.names}: {problem}.", hint=_HINT
        ) from problem
    if (found := find_misfit(values, columns)) is not None:
        raise InvalidInputError(f"{who}: {found}.", hint=CONVERT) from found.why


_HINT = "Give a list of tuples or dicts with these columns, a pandas frame or an Arrow table."
