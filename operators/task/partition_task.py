"""The task of one partition in the Python worker: bind states, process rows, stage writes, yield output."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.operators.bound.declared_states import DeclaredStates
from pyspark_ckpt.operators.bound.timers import BoundTimers, find_left_ms
from pyspark_ckpt.operators.declarations.operator import BATCH, CLOCKS, HASH, ROUTE, KeyedOperator
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
from pyspark_ckpt.operators.session.state_partition import check_place, check_planned
from pyspark_ckpt.operators.session.told_operators import find_own, read_told
from pyspark_ckpt.operators.session.worker import WorkerSession, find_ticket, naming
from pyspark_ckpt.operators.task.arrivals import Arrivals, Arrived, Rows, split_by_input
from pyspark_ckpt.operators.task.event_times import read_times_ms, read_times_us
from pyspark_ckpt.operators.task.firing import Firing
from pyspark_ckpt.operators.task.group_times import GroupTimes, read_group, require_present
from pyspark_ckpt.operators.task.initial_values import set_values
from pyspark_ckpt.operators.task.merging import Merged
from pyspark_ckpt.operators.task.processor_calls import ProcessorCalls
from pyspark_ckpt.operators.task.row_buffer import RowBuffer, ranges
from pyspark_ckpt.operators.task.staging import finish, flush, spill, sweep
from pyspark_ckpt.state_store.errors import InternalError, InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.format.spark_hash import SEED, hash_int
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.transactions.ticket import Ticket

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.bound.base import Kept

TIMERS_PART = 8
"""Due timers may take another eighth of the memory for rows."""
ANSWER = pa.schema([(BATCH, pa.binary()), (CLOCKS, pa.binary())])
"""An answer has a serialized batch of output; the last one, the row of clocks to store, empty for none."""


@cache
def _settle() -> None:
    """Exclude loaded objects from garbage collection, which Spark runs after each task.

    The modules of pandas and Arrow alone would take 30 ms. Cycles in what the worker's first task has loaded, also in
    its processor, are kept as long as the worker.
    """
    if os.environ.get("SPARK_REUSE_WORKER"):  # set by Spark; without it this worker runs no other task
        gc.collect()
        gc.freeze()


@cache
def _log(uid: str, partition: int) -> StoreLog:
    return StoreLog("operators.task", f"keyed operator {uid!r}, partition {partition}")


def _warn_of_clock(uid: str, partition: int, times: GroupTimes) -> None:
    """Warn once in an hour, in the output of the executor."""
    _log(uid, partition).warn_of_standing(
        "Keyed operator %r, partition %d: %s", uid, partition, times.describe_behind()
    )


def _answer(output: bytes | None, clocks: bytes | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({BATCH: [output], CLOCKS: [clocks]}, ANSWER)


@dataclass(frozen=True)
class PartitionTask:
    """The function that Spark calls for the rows of a partition."""

    operator: KeyedOperator
    processor: KeyedProcessor | VectorProcessor

    @property
    def __name__(self) -> str:
        """The name in Spark's plans, by which the shim knows it."""
        return f"keyed(uid={self.operator.uid!r})"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process all rows of the partition, in batches of ANSWER's form. The last one has no output.

        Writes are staged before the last batch is taken.
        """
        from pyspark import TaskContext

        task = TaskContext.get()
        if task is None:
            raise LifecycleError(f"Keyed operator {self.operator.uid!r} was called outside of a Spark task.")
        _settle()
        told = read_told(task.getLocalProperty)
        own = find_own(told, self.__name__)
        if own is None:
            raise InternalError(f"Keyed operator {self.operator.uid!r} is not among the operators of its plan: {told}.")
        ticket = find_ticket(task.taskAttemptId(), self.operator.local_dir, own.number)
        check_planned(ticket, self.operator.uid, self.operator.partitions)
        require_present(own.clocks.processing_ms, f"Keyed operator {self.operator.uid!r}", ticket.version)
        with naming(ticket, self.operator.uid):
            times = GroupTimes(self.operator, read_group(ticket), own.clocks)
            if times.is_behind:
                _warn_of_clock(self.operator.uid, ticket.partition, times)
            context = Context(
                batch_id=ticket.version,
                partition=ticket.partition,
                processing_time_ms=times.processing_ms,
                watermark_ms=times.watermark_ms,
                partitions=self.operator.partitions,
            )
            rows = split_by_input(self._check_places(batches, ticket), self.operator.time)
            for batch in self.run(rows, ticket, times, context, tuple(each.name for each in told)):
                yield _answer(batch.serialize().to_pybytes(), None)
            yield _answer(None, b"" if times.new_row is None else times.new_row.encode())

    def _check_places(self, batches: Iterable[pa.RecordBatch], ticket: Ticket) -> Iterator[pa.RecordBatch]:
        """Yield batches whose rows all belong to the partition of the ticket. Raises InvalidInputError."""
        for batch in batches:
            for route in pc.unique(batch.column(ROUTE)).to_pylist():
                check_place(ticket, self.operator.uid, hash_int(route, SEED))
            yield batch

    def run(
        self,
        rows: Iterable[tuple[int, Rows]],
        ticket: Ticket,
        times: GroupTimes,
        context: Context,
        operators: tuple[str, ...] = (),
    ) -> Iterator[pa.RecordBatch]:
        """Process ``rows``, each with the number of its input, and yield the output. Writes are staged at the end."""
        codec = KeyCodec(self.operator.key_types)
        states = DeclaredStates(
            self.operator.uid, self.operator.states, self.operator.allow_non_restored_state, operators
        )
        key_schema = {name: str(kind) for name, kind in zip(self.operator.by, self.operator.key_types, strict=True)}
        declared = states.descriptors(ticket, key_schema, {"max_parallelism": self.operator.max_parallelism})
        # In a VectorProcessor keys are columns, which can have values that Python cannot hold.
        read = codec.plain if isinstance(self.processor, VectorProcessor) else codec
        session = WorkerSession(ticket, declared, read, times.now_ms, times.fired_ms, times.late_until_ms)
        processor, bound = states.bind(self.processor, session)
        timers = [each for each in bound if isinstance(each, BoundTimers)]
        work = ProcessorCalls(self.operator, processor, context, session.position)
        folder = Path(ticket.staging)
        limit = self.operator.memory_bytes
        session.spill_beyond(limit, partial(spill, session, bound))
        arrivals = Arrivals(
            self.operator,
            lambda rows, name: RowBuffer(rows, limit, folder / f"{session.name}-{name}"),
            times.late_ms,
            limit,
        )
        firing = Firing(timers, session, limit // TIMERS_PART, folder / f"{session.name}-timers")
        try:
            session.counts["clocks_behind"] += times.is_behind
            session.counts["late_rows"] += arrivals.fill(rows, ticket.version)
            firing.list_stored()
            sweep(session, bound, arrivals.count)
            if (broadcast := arrivals.take_broadcast()) is not None:
                yield from self._count_late_rows(work.process_broadcast(broadcast), times, session)
            for (*arrived, due), end in ranges([*(each.buffer for each in arrivals.all), firing.listed]):
                given = list(zip(arrivals.all, arrived, strict=True))
                output = chain(self._process_all(work, given, codec, bound), work.fire(firing, due))
                yield from self._count_late_rows(output, times, session)
                flush(session, bound, end)
            if isinstance(processor, AdaptingProcessor):
                processor.close()
            session.counts["fired_timers"] += firing.count
            times.end(timers, find_left_ms(session, self.operator.uid))
            finish(session, bound)
        finally:
            arrivals.close()
            firing.close()
            session.close()

    def _count_late_rows(
        self, output: Iterable[pa.RecordBatch], times: GroupTimes, session: WorkerSession
    ) -> Iterator[pa.RecordBatch]:
        """Yield the same batches, and count their late rows."""
        for batch in output:
            session.counts["late_output_rows"] += self._count_late(batch, times.late_until_ms)
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

    def _process_all(
        self,
        work: ProcessorCalls,
        given: Sequence[tuple[Arrived, pa.Table]],
        codec: KeyCodec,
        bound: Sequence[Kept],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the output for all rows, in the order in which keys get them."""
        merged = [each for each in given if self.operator.merges_inputs and each[0].how == "in time" and len(each[1])]
        for each in given:
            if not self.operator.merges_inputs or each[0].how != "in time":
                yield from self._process(work, *each, codec, bound)
        if merged:
            inputs = [arrived.given for arrived, _ in merged]
            tables = [rows.drop_columns([HASH]) for _, rows in merged]
            hashes = [rows.column(HASH).to_numpy() for _, rows in merged]
            order = Merged.of(list(zip(inputs, tables, hashes, strict=True)), self.operator.by, codec)
            if (life_ms := self.operator.event_life_ms) is not None:
                order = order.in_time([self._read_times(work, *each) for each in merged], life_ms)
            methods = [name_method(self.processor, "in time", each.name) for each in inputs]
            yield from work.process_merged(order, tables, methods)

    def _process(
        self, work: ProcessorCalls, arrived: Arrived, rows: pa.Table, codec: KeyCodec, bound: Sequence[Kept]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the output for rows that have come in one way."""
        if len(rows) == 0:
            return
        by, life_ms = arrived.given.by, self.operator.event_life_ms
        if arrived.given.order_by:
            rows = rows.take(pa.array(argsort_rows(rows, arrived.given.order_by)))
        elif life_ms is not None:
            times_us = read_times_us(rows, arrived.given.time, work.position.time.watermark_ms)
            rows = rows.take(pa.array(np.argsort(times_us, kind="stable")))
        hashes, rows = rows.column(HASH).to_numpy(), rows.drop_columns([HASH])
        keys, index = group_by_key(rows.select(by).rename_columns(self.operator.by), self.operator.by, codec, hashes)
        if arrived.how == "initial" and not takes_initial_rows(self.processor):
            if life_ms is not None:
                work.position.time.begin_keys(keys, index, self._read_times(work, arrived, rows))
            set_values(self.operator.uid, bound, keys, index, rows.drop_columns(list(by)))
            work.position.time.end()
            return
        method = name_method(self.processor, arrived.how, arrived.given.name)
        if life_ms is None:
            yield from work.process(keys, index, rows, method)
        else:
            in_time = Merged.of_one(keys, index).in_time([self._read_times(work, arrived, rows)], life_ms)
            yield from work.process_merged(in_time, [rows], [method])

    def _read_times(self, work: ProcessorCalls, arrived: Arrived, rows: pa.Table) -> NDArray[np.int64]:
        """Return the event time of each row, which is never before the watermark."""
        return read_times_ms(rows, arrived.given.time, work.position.time.watermark_ms)
