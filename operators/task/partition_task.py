"""The task of one partition in the Python worker: bind states, process rows, stage writes, yield output."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
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
from pyspark_ckpt.operators.declarations.operator import BATCH, HASH, INITIAL, ROW, KeyedOperator, with_hash
from pyspark_ckpt.operators.declarations.processors import (
    AdaptingProcessor,
    Context,
    KeyedProcessor,
    VectorProcessor,
    takes_initial_rows,
)
from pyspark_ckpt.operators.encoding.distinct_keys import group_by_key
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec, argsort
from pyspark_ckpt.operators.encoding.unsafe_rows import portions, read_rows
from pyspark_ckpt.operators.session.state_partition import check_place, check_planned
from pyspark_ckpt.operators.session.worker import WorkerSession, find_ticket, naming
from pyspark_ckpt.operators.task.firing import Firing
from pyspark_ckpt.operators.task.group_times import LATE_CONF, GroupTimes
from pyspark_ckpt.operators.task.initial_values import set_values
from pyspark_ckpt.operators.task.processor_calls import Part, ProcessorCalls
from pyspark_ckpt.operators.task.row_buffer import RowBuffer, ranges
from pyspark_ckpt.operators.task.staging import finish, flush, spill, sweep
from pyspark_ckpt.state_store.errors import InternalError, InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.format.spark_hash import SEED, hash_int
from pyspark_ckpt.state_store.transactions.ticket import Ticket

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.state import GroupState

    from pyspark_ckpt.operators.bound.base import Kept

RECORDS_CONF = "spark.sql.execution.arrow.maxRecordsPerBatch"
RECORDS = 10_000
"""The default of RECORDS_CONF."""
HELD_BYTES = 16 << 20
"""Spark holds output back until it has more rows than RECORDS_CONF. This much output is forced out earlier."""
_NONE = pa.schema([])
TIMERS_PART = 8
"""Due timers may take another eighth of the memory for rows."""


def make_frames(batches: Iterator[pa.RecordBatch], records: int) -> Iterator[pd.DataFrame]:
    """Yield a frame of one row for each batch.

    Spark's worker holds frames until they have more than ``records`` rows, then passes them on as one. After HELD_BYTES
    of batches ``records`` nulls are therefore added, which the shim ignores. 10,000 nulls take 10 ms. A higher
    ``records`` raises the limit of held bytes, because more nulls are needed.
    """
    import pandas as pd

    held_bytes, most_bytes = 0, max(HELD_BYTES, records * 1024)
    for batch in batches:
        content = batch.serialize().to_pybytes()
        held_bytes += len(content)
        is_full = held_bytes > most_bytes and records > 0
        yield pd.DataFrame({BATCH: [content, *([None] * records if is_full else ())]})
        held_bytes = 0 if is_full else held_bytes


@cache
def _settle() -> None:
    """Exclude loaded objects from garbage collection, which Spark runs after each task.

    The modules of pandas and Arrow alone would take 30 ms. Cycles in what the worker's first task has loaded, also in
    its processor, are kept as long as the worker.
    """
    if os.environ.get("SPARK_REUSE_WORKER"):  # set by Spark; without it this worker runs no other task
        gc.collect()
        gc.freeze()


@dataclass(frozen=True)
class PartitionTask:
    """The function that Spark calls for a partition's only group."""

    operator: KeyedOperator
    processor: KeyedProcessor | VectorProcessor

    @property
    def __name__(self) -> str:
        """The name in Spark's plans, by which the shim knows it."""
        return f"keyed(uid={self.operator.uid!r})"

    def __call__(self, key: tuple[int], chunks: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        """Process all rows of the partition. Their writes are staged before the last output row is taken."""
        from pyspark import TaskContext

        task = TaskContext.get()
        if task is None:
            raise LifecycleError(f"Keyed operator {self.operator.uid!r} was called outside of a Spark task.")
        _settle()
        ticket = find_ticket(task.taskAttemptId(), self.operator.local_dir)
        check_planned(ticket, self.operator.uid, self.operator.partitions)
        check_place(ticket, self.operator.uid, hash_int(int(key[0]), SEED))
        late = task.getLocalProperty(LATE_CONF)
        times = GroupTimes(self.operator, state, None if late is None else int(late))
        context = Context(
            batch_id=int(task.getLocalProperty("streaming.sql.batchId") or -1),
            partition=ticket.partition,
            processing_time_ms=times.processing_ms,
            watermark_ms=times.watermark_ms,
        )
        with naming(ticket, self.operator.uid):
            batches = self._run(chunks, ticket, times, context)
            yield from make_frames(batches, int(task.getLocalProperty(RECORDS_CONF) or RECORDS))

    def _run(
        self, chunks: Iterator[pd.DataFrame], ticket: Ticket, times: GroupTimes, context: Context
    ) -> Iterator[pa.RecordBatch]:
        codec = KeyCodec(self.operator.key_types)
        states = DeclaredStates(self.operator.uid, self.operator.states, self.operator.allow_non_restored_state)
        key_schema = {name: str(kind) for name, kind in zip(self.operator.by, self.operator.key_types, strict=True)}
        declared = states.descriptors(ticket, key_schema, {"max_parallelism": self.operator.max_parallelism})
        # In a VectorProcessor keys are columns, which can have values that Python cannot hold.
        read = codec.plain if isinstance(self.processor, VectorProcessor) else codec
        session = WorkerSession(ticket, declared, read, times.now_ms, times.fired_ms)
        processor, bound = states.bind(self.processor, session)
        timers = [each for each in bound if isinstance(each, BoundTimers)]
        work = ProcessorCalls(self.operator, processor, context, session.position)
        folder = Path(ticket.staging)
        limit = self.operator.memory_bytes
        session.spill_beyond(limit, partial(spill, session, bound))
        rows = RowBuffer(self.operator.rows, limit, folder / f"{session.name}-rows")
        late_rows = RowBuffer(self.operator.rows, limit, folder / f"{session.name}-late")
        initial_rows = RowBuffer(with_hash(self.operator.initial or _NONE), limit, folder / f"{session.name}-initial")
        firing = Firing(timers, session, limit // TIMERS_PART, folder / f"{session.name}-timers")
        try:
            in_stream = self._take_initial(initial_rows, chunks, ticket)
            session.counts["late_rows"] += self._fill(rows, late_rows, in_stream, times.late_ms)
            firing.list_stored()
            sweep(session, bound, rows.count + late_rows.count)
            parts = [initial_rows, late_rows, rows, firing.listed]
            for (some_initial, some_late, some_rows, some_due), end in ranges(parts):
                output = chain(
                    self._process_initial(work, some_initial, codec, bound),
                    self._process(work, some_late, codec, "late"),
                    self._process(work, some_rows, codec),
                    work.fire(firing, some_due),
                )
                for batch in output:
                    session.counts["late_output_rows"] += self._count_late(batch, times.late_until_ms)
                    yield batch
                flush(session, bound, end)
            if isinstance(processor, AdaptingProcessor):
                processor.close()
            session.counts["fired_timers"] += firing.count
            times.set_time_out(timers, find_left_ms(session, self.operator.uid))
            finish(session, bound)
        finally:
            rows.close()
            late_rows.close()
            initial_rows.close()
            firing.close()
            session.close()

    def _take_initial(
        self, buffer: RowBuffer, chunks: Iterator[pd.DataFrame], ticket: Ticket
    ) -> Iterator[pd.DataFrame]:
        """Add the rows of the initial state to a buffer; yield the others. Raises InternalError after version 0."""
        for chunk in chunks:
            is_initial = np.zeros(0, np.bool_)
            if self.operator.initial is not None:
                is_initial = chunk[INITIAL].to_numpy(np.bool_)
            if self.operator.initial is None or not is_initial.any():
                yield chunk
            elif ticket.version == 0:
                self._add(buffer, chunk[is_initial], self.operator.initial)
                yield chunk[~is_initial]
            else:
                raise InternalError(
                    f"Keyed operator {self.operator.uid!r}: rows of the initial state come to version {ticket.version}."
                )

    def _fill(
        self, buffer: RowBuffer, late_buffer: RowBuffer, chunks: Iterator[pd.DataFrame], late_ms: int | None
    ) -> int:
        """Add all rows to the buffers; return the number of late rows. Without a method for them, they are dropped."""
        late = 0
        for chunk in chunks:
            in_time = chunk
            if late_ms is not None:
                is_in_time = chunk[self.operator.time].to_numpy(np.int64) > late_ms * 1000
                in_time = chunk[is_in_time]
                late += len(chunk) - len(in_time)
                if self.operator.takes_late_rows:
                    self._add(late_buffer, chunk[~is_in_time], self.operator.input)
            self._add(buffer, in_time, self.operator.input)
        return late

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

    def _add(self, buffer: RowBuffer, chunk: pd.DataFrame, schema: pa.Schema) -> None:
        rows, hashes = chunk[ROW].to_list(), pa.array(chunk[HASH].to_numpy(np.int32))
        for begin, end in portions(rows):
            columns = read_rows(rows[begin:end], schema).columns
            part = hashes.slice(begin, end - begin)
            buffer.add(pa.RecordBatch.from_arrays([*columns, part], schema=with_hash(schema)))

    def _process_initial(
        self, work: ProcessorCalls, rows: pa.Table, codec: KeyCodec, bound: Sequence[Kept]
    ) -> Iterator[pa.RecordBatch]:
        if len(rows) == 0:
            return iter(())
        given = rows.drop_columns([HASH])
        keys, index = group_by_key(given, self.operator.by, codec, rows.column(HASH).to_numpy())
        if takes_initial_rows(self.processor):
            return work.process(keys, index, given, "initial")
        set_values(self.operator.uid, bound, keys, index, given.drop_columns(list(self.operator.by)))
        return iter(())

    def _process(
        self, work: ProcessorCalls, rows: pa.Table, codec: KeyCodec, part: Part = "in time"
    ) -> Iterator[pa.RecordBatch]:
        if len(rows) == 0:
            return iter(())
        hashes = rows.column(HASH).to_numpy()
        given = rows.drop_columns([HASH])
        if self.operator.order_by:
            order = argsort([given.column(name).combine_chunks() for name in self.operator.order_by])
            given, hashes = given.take(pa.array(order)), hashes[order]
        keys, index = group_by_key(given, self.operator.by, codec, hashes)
        return work.process(keys, index, given, part)
