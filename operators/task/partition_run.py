"""The batch of one partition: states bound to a processor, and the steps from its rows to staged writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.operators.bound.declared_states import DeclaredStates
from pyspark_ckpt.operators.bound.timers import BoundTimers, find_left_ms
from pyspark_ckpt.operators.declarations.operator import HASH, KeyedOperator
from pyspark_ckpt.operators.declarations.processors import (
    AdaptingProcessor,
    Context,
    KeyedProcessor,
    VectorProcessor,
    name_method,
    takes_initial_rows,
)
from pyspark_ckpt.operators.encoding.distinct_keys import group_by_key
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec, argsort_rows
from pyspark_ckpt.operators.session.worker import WorkerSession
from pyspark_ckpt.operators.task.arrivals import Arrivals, Arrived, Numbered
from pyspark_ckpt.operators.task.event_times import read_times_ms, read_times_us
from pyspark_ckpt.operators.task.firing import Firing
from pyspark_ckpt.operators.task.group_times import GroupTimes
from pyspark_ckpt.operators.task.initial_values import set_values
from pyspark_ckpt.operators.task.merging import Merged
from pyspark_ckpt.operators.task.processor_calls import ProcessorCalls
from pyspark_ckpt.operators.task.row_buffer import RowBuffer, ranges
from pyspark_ckpt.operators.task.staging import finish, flush, spill, sweep
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.transactions.ticket import Ticket

if TYPE_CHECKING:
    from numpy.typing import NDArray

TIMERS_PART = 8
"""Due timers may take another eighth of the memory for rows."""
FEW = 64
"""Up to so many rows are grouped as Python objects, which takes less than columns do."""


class PartitionRun:
    """One task of an operator. Its writes are staged at the end of ``process``. Close it in any case."""

    def __init__(
        self,
        operator: KeyedOperator,
        program: KeyedProcessor | VectorProcessor,
        ticket: Ticket,
        times: GroupTimes,
        context: Context,
        operators: tuple[str, ...] = (),
    ) -> None:
        """Bind the states of ``program``. ``operators``: the names of all operators on groups of the query.

        Raises InvalidInputError (states that do not fit the stored ones), FormatError, StorageError, LifecycleError.
        """
        self.operator = operator
        self._ticket = ticket
        self._times = times
        self._codec = KeyCodec(operator.key_types)
        states = DeclaredStates(operator.uid, operator.states, operator.allow_non_restored_state, operators)
        key_schema = {name: str(kind) for name, kind in zip(operator.by, operator.key_types, strict=True)}
        declared = states.descriptors(ticket, key_schema, {"max_parallelism": operator.max_parallelism})
        # In a VectorProcessor keys are columns, which can have values that Python cannot hold.
        read = self._codec.plain if isinstance(program, VectorProcessor) else self._codec
        self._session = WorkerSession(ticket, declared, read, times.now_ms, times.fired_ms, times.late_until_ms)
        self.processor, self._bound = states.bind(program, self._session)
        self._timers = [each for each in self._bound if isinstance(each, BoundTimers)]
        self._takes_few = self._codec.is_simple and not isinstance(program, VectorProcessor)
        self._work = ProcessorCalls(operator, self.processor, context, self._session.position)
        self._folder, limit = Path(ticket.staging), operator.memory_bytes
        self._session.spill_beyond(limit, partial(spill, self._session, self._bound))
        self._firing = Firing(
            self._timers, self._session, limit // TIMERS_PART, self._folder / f"{self._session.name}-timers"
        )
        self._session.counts["clocks_behind"] += times.is_behind

    def close(self) -> None:
        """Remove what is on disk besides the staged files."""
        self._firing.close()
        self._session.close()

    def process(self, rows: Iterable[Numbered]) -> Iterator[pa.RecordBatch]:
        """Process all ``rows`` of the batch, each with the number of its input, and yield the output."""
        arrivals = self._make_arrivals()
        with ExitStack() as stack:
            stack.callback(arrivals.close)
            self._session.counts["late_rows"] += arrivals.fill(rows, self._ticket.version)
            self._firing.list_stored()
            sweep(self._session, self._bound, arrivals.count)
            yield from self._process_broadcast(arrivals)
            for (*arrived, due), end in ranges([*(each.buffer for each in arrivals.all), self._firing.listed]):
                given = list(zip(arrivals.all, arrived, strict=True))
                output = chain(self._process_all(given), self._work.fire(self._firing, due))
                yield from self._count_late_rows(output)
                flush(self._session, self._bound, end)
            self._end()

    def process_live(
        self, groups: Iterable[Iterable[Numbered]], read_clock_ms: Callable[[], int]
    ) -> Iterator[list[pa.RecordBatch]]:
        """Process each group of rows when it comes, and yield its output, until there are no more groups.

        Processing time moves on before each group, and timers that are due fire after it, in a group without rows, too.
        Raises InvalidInputError for an operator whose rows need an order.
        """
        if any(each.order_by for each in self.operator.inputs):
            raise InvalidInputError(
                f"Keyed operator {self.operator.uid!r} has order_by, but in real-time mode rows are processed as they "
                "arrive.",
                hint="Leave out order_by and keep the order in state, or run the query in micro-batches.",
            )
        for each in self._timers:
            each.rows.expect_moves()
        self._firing.list_stored()
        sweep(self._session, self._bound, 0)
        stored = ranges([self._firing.listed])
        for rows in groups:
            self._move_clock(read_clock_ms())
            with closing(self._make_arrivals()) as arrivals:
                self._session.counts["late_rows"] += arrivals.fill(rows, self._ticket.version)
                output = list(self._process_broadcast(arrivals))
                for arrived, _ in ranges([each.buffer for each in arrivals.all]):
                    processed = self._process_all(list(zip(arrivals.all, arrived, strict=True)))
                    output += self._count_late_rows(processed)
            yield [*output, *self._count_late_rows(self._fire(stored))]
        flush(self._session, self._bound, None)
        self._end()

    def _move_clock(self, to_ms: int) -> None:
        self._times.move(to_ms)
        now_ms = self._times.processing_ms
        if now_ms > self._work.context.processing_time_ms:
            self._session.move_clock("processing", now_ms)
            self._work.context = replace(self._work.context, processing_time_ms=now_ms)

    def _fire(self, stored: Iterator[tuple[list[pa.Table], bytes | None]]) -> Iterator[pa.RecordBatch]:
        """Fire timers that are due: those ``stored`` when the batch began, once, and those due since."""
        for (due,), _ in stored:
            yield from self._work.fire(self._firing, due)
        if self._firing.has_registered:
            yield from self._work.fire(self._firing, self._firing.none)

    def _end(self) -> None:
        """Stage what is left, and make the row of clocks."""
        if isinstance(self.processor, AdaptingProcessor):
            self.processor.close()
        self._session.counts["fired_timers"] += self._firing.count
        self._times.end(self._timers, find_left_ms(self._session, self.operator.uid))
        finish(self._session, self._bound)

    def _make_arrivals(self) -> Arrivals:
        limit, lead = self.operator.memory_bytes, f"{self._session.name}-"
        return Arrivals(
            self.operator,
            lambda rows, name: RowBuffer(rows, limit, self._folder / f"{lead}{name}"),
            self._times.late_ms,
            limit,
        )

    def _process_broadcast(self, arrivals: Arrivals) -> Iterator[pa.RecordBatch]:
        if (broadcast := arrivals.take_broadcast()) is not None:
            yield from self._count_late_rows(self._work.process_broadcast(broadcast))

    def _count_late_rows(self, output: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the same batches, and count their late rows."""
        for batch in output:
            self._session.counts["late_output_rows"] += self._count_late(batch, self._times.late_until_ms)
            yield batch

    def _count_late(self, output: pa.RecordBatch, late_ms: int | None) -> int:
        """Return how many rows are late for later operators. Raises InvalidInputError if the operator refuses them."""
        name = self.operator.event_time
        if name is None or late_ms is None:
            return 0
        late = output.filter(pc.field(name) <= pa.scalar(late_ms * 1000, pa.timestamp("us", "UTC")))
        if len(late) and self.operator.refuses_late_output:
            raise InvalidInputError(
                f"Keyed operator {self.operator.uid!r} output a row whose event time {name} is "
                f"{late.column(name)[0].as_py()}, but rows up to {pa.scalar(late_ms * 1000, late.column(name).type)} "
                "are late for the operators after it.",
                hint="Give output rows a later event time, such as that of the timer that fires, or raise the delay of "
                "withWatermark. With late_output='count', such rows are counted.",
            )
        return len(late)

    def _process_all(self, given: Sequence[tuple[Arrived, pa.Table]]) -> Iterator[pa.RecordBatch]:
        """Yield the output for all rows, in the order in which keys get them."""
        merged = [each for each in given if self.operator.merges_inputs and each[0].how == "in time" and len(each[1])]
        for each in given:
            if not self.operator.merges_inputs or each[0].how != "in time":
                yield from self._process(*each)
        if merged:
            inputs = [arrived.given for arrived, _ in merged]
            tables = [rows.drop_columns([HASH]) for _, rows in merged]
            hashes = [rows.column(HASH).to_numpy() for _, rows in merged]
            order = Merged.of(list(zip(inputs, tables, hashes, strict=True)), self.operator.by, self._codec)
            if (life_ms := self.operator.event_life_ms) is not None:
                order = order.in_time([self._read_times(*each) for each in merged], life_ms)
            methods = [name_method(self.processor, "in time", each.name) for each in inputs]
            yield from self._work.process_merged(order, tables, methods)

    def _process(self, arrived: Arrived, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield the output for rows that have come in one way."""
        if len(rows) == 0:
            return
        work = self._work
        by, life_ms = arrived.given.by, self.operator.event_life_ms
        if arrived.given.order_by:
            rows = rows.take(pa.array(argsort_rows(rows, arrived.given.order_by)))
        elif life_ms is not None:
            times_us = read_times_us(rows, arrived.given.time, self._session.position.time.watermark_ms)
            rows = rows.take(pa.array(np.argsort(times_us, kind="stable")))
        method = name_method(self.processor, arrived.how, arrived.given.name)
        if len(rows) <= FEW and self._takes_few and arrived.how != "initial" and life_ms is None:
            yield from work.process_few(rows, by, self._codec, method)
            return
        hashes, rows = rows.column(HASH).to_numpy(), rows.drop_columns([HASH])
        groups = group_by_key(rows.select(by).rename_columns(self.operator.by), self.operator.by, self._codec, hashes)
        if arrived.how == "initial" and not takes_initial_rows(self.processor):
            if life_ms is not None:
                work.position.time.begin_keys(groups.keys, groups.places, self._read_times(arrived, rows))
            set_values(self.operator.uid, self._bound, groups.keys, groups.places, rows.drop_columns(list(by)))
            work.position.time.end()
            return
        if life_ms is None:
            yield from work.process(groups, rows, method)
        else:
            in_time = Merged.of_one(groups).in_time([self._read_times(arrived, rows)], life_ms)
            yield from work.process_merged(in_time, [rows], [method])

    def _read_times(self, arrived: Arrived, rows: pa.Table) -> NDArray[np.int64]:
        """Return the event time of each row, which is never before the watermark."""
        return read_times_ms(rows, arrived.given.time, self._session.position.time.watermark_ms)
