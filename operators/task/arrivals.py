"""The rows of one batch and partition: those of the initial state, and each input's late ones and those in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.declarations.operator import (
    BROADCAST,
    HASH,
    INITIAL,
    INPUT,
    Input,
    KeyedOperator,
    plain_column,
    row_column,
)
from pyspark_ckpt.operators.encoding.key_codec import argsort_rows
from pyspark_ckpt.operators.encoding.unsafe_rows import read_dense_rows
from pyspark_ckpt.operators.task.row_buffer import RowBuffer
from pyspark_ckpt.state_store.arrays.packed import Packed
from pyspark_ckpt.state_store.errors import InternalError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.declarations.processors import Arrival


@dataclass(frozen=True)
class Arrived:
    """Rows that have come in one way. ``given``: their input, or the initial state in its place."""

    how: Arrival
    given: Input
    buffer: RowBuffer

    def add(self, rows: Rows) -> None:
        """Add rows."""
        for batch in rows.batches(self.given):
            self.buffer.add(batch)


class Rows(Protocol):
    """Some rows of one input, which come to a batch together."""

    def __len__(self) -> int:
        """How many."""
        ...

    def are_after(self, instant_us: int) -> NDArray[np.bool_]:
        """Tell for each row whether its event time is later than ``instant_us``."""
        ...

    def where(self, chosen: NDArray[np.bool_]) -> Rows:
        """Return the chosen rows."""
        ...

    def batches(self, given: Input) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the columns ``given.rows``."""
        ...


class BroadcastRows(Protocol):
    """Some rows of the broadcast input, which come to a batch together."""

    def table(self, given: Input, others: Sequence[Any]) -> pa.Table:
        """Return these rows and all ``others``, in an order that does not depend on how they have come."""
        ...


@dataclass(frozen=True)
class SparkRows:
    """Rows as Spark passes them. ``time``: the column with their event time.

    ``row``: the column with their columns, which are plain ones if it is None.
    """

    rows: pa.RecordBatch
    row: str | None
    time: str

    def __len__(self) -> int:
        return len(self.rows)

    def are_after(self, instant_us: int) -> NDArray[np.bool_]:
        """See Rows."""
        after: NDArray[np.bool_] = self.rows.column(self.time).to_numpy() > instant_us
        return after

    def where(self, chosen: NDArray[np.bool_]) -> SparkRows:
        """See Rows."""
        return SparkRows(self.rows.filter(pa.array(chosen)), self.row, self.time)

    def batches(self, given: Input) -> Iterator[pa.RecordBatch]:
        """See Rows."""
        plain = (self.rows.column(plain_column(n)) for n in range(len(given.columns)))
        found = plain if self.row is None else self.rows.column(self.row).flatten()
        columns = map(_view, found, given.columns)
        yield pa.RecordBatch.from_arrays([*columns, self.rows.column(HASH)], schema=given.rows)


@dataclass(frozen=True)
class SparkBroadcastRows:
    """Rows of the broadcast input as Spark passes them: bytes."""

    rows: pa.Array

    def table(self, given: Input, others: Sequence[SparkBroadcastRows]) -> pa.Table:
        """See BroadcastRows: in the order of their bytes."""
        rows = pa.concat_arrays([self.rows, *(each.rows for each in others)])
        return pa.Table.from_batches([read_dense_rows(Packed.of_arrow(rows.sort()), given.columns)])


Numbered: TypeAlias = "tuple[int, Any]"
"""The number of an input, and some of its Rows; BroadcastRows with the number BROADCAST."""


def _view(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return a column with the type that the plan of the query had: Spark may have found meanwhile where no null is."""
    return column if column.type == field.type else column.view(field.type)


def split_by_input(batches: Iterable[pa.RecordBatch], time: str) -> Iterator[Numbered]:
    """Yield the rows that Spark passes, with the number of their input."""
    for batch in batches:
        if INPUT not in batch.schema.names:
            yield 0, SparkRows(batch, None, time)
            continue
        numbers = batch.column(INPUT).to_numpy()
        for number in np.unique(numbers).tolist():
            row, chosen = row_column(number), pa.array(numbers == number)
            if number == BROADCAST:
                yield number, SparkBroadcastRows(batch.column(row).filter(chosen))
            else:
                own = batch.select([name for name in batch.schema.names if name in (HASH, time, row)])
                yield number, SparkRows(own.filter(chosen), row, time)


class Arrivals:
    """All rows of a batch. Within a key they are processed in the order of ``all``."""

    def __init__(
        self,
        operator: KeyedOperator,
        make_buffer: Callable[[pa.Schema, str], RowBuffer],
        late_ms: int | None,
        limit_bytes: int,
    ) -> None:
        """Rows with an event time up to ``late_ms`` are late. Each buffer gets a name of its own.

        All buffers together keep up to ``limit_bytes`` of rows in memory.
        """
        self._limit_bytes = limit_bytes
        self._operator, self._late_ms = operator, late_ms
        self._initial: Arrived | None = None
        if operator.initial is not None:
            given = Input("", operator.by, operator.initial, time=_find_time(operator.inputs[0], operator.initial))
            self._initial = Arrived("initial", given, make_buffer(given.rows, "initial"))
        self._late = {
            n: Arrived("late", each, make_buffer(each.rows, f"{n}-late"))
            for n, each in enumerate(operator.inputs)
            if each.takes_late_rows
        }
        self._in_time = [
            Arrived("in time", each, make_buffer(each.rows, f"{n}-rows")) for n, each in enumerate(operator.inputs)
        ]
        self._broadcast: list[BroadcastRows] = []
        self.all = [*([] if self._initial is None else [self._initial]), *self._late.values(), *self._in_time]

    @property
    def count(self) -> int:
        """How many rows of the stream there are."""
        return sum(each.buffer.count for each in (*self._late.values(), *self._in_time))

    def fill(self, given: Iterable[Numbered], version: int) -> int:
        """Add rows, each with the number of its input; return how many are late.

        Late ones that the processor has no method for are dropped. ``version``: that of the state. Raises InternalError
        for an initial state after version 0.
        """
        late = 0
        for number, rows in given:
            if number == INITIAL:
                self._add_initial(rows, version)
            elif number == BROADCAST:
                self._broadcast.append(rows)
            else:
                late += self._add(number, rows)
            if len(self.all) > 1 and sum(each.buffer.held_bytes for each in self.all) > self._limit_bytes:
                max(self.all, key=lambda each: each.buffer.held_bytes).buffer.spill()
        return late

    def take_broadcast(self) -> pa.Table | None:
        """Return the rows of the broadcast input, in the same order in all partitions; None if there are none.

        They are in the order of its ``order_by``, and equal ones in the order of their bytes.
        """
        given = self._operator.broadcast
        if given is None or not self._broadcast:
            return None
        (first, *others), self._broadcast = self._broadcast, []
        rows = first.table(given, others)
        if given.order_by:
            rows = rows.take(pa.array(argsort_rows(rows, given.order_by)))
        return rows

    def close(self) -> None:
        """Remove what is on disk."""
        with ExitStack() as stack:
            for each in self.all:
                stack.callback(each.buffer.close)

    def _add_initial(self, rows: Rows, version: int) -> None:
        if self._initial is None or version > 0:
            raise InternalError(
                f"Keyed operator {self._operator.uid!r}: rows of the initial state come to version {version}."
            )
        self._initial.add(rows)

    def _add(self, number: int, rows: Rows) -> int:
        late = 0
        if self._late_ms is not None:
            is_in_time = rows.are_after(self._late_ms * 1000)
            late = len(rows) - int(is_in_time.sum())
            if late and number in self._late:
                self._late[number].add(rows.where(~is_in_time))
            rows = rows.where(is_in_time) if late else rows
        self._in_time[number].add(rows)
        return late


def _find_time(first: Input, initial: pa.Schema) -> str | None:
    """Return the column of the initial state with the event time: that of the first input, if both have it."""
    has_it = first.time in initial.names and initial.field(first.time).type == first.columns.field(first.time).type
    return first.time if has_it else None
