"""What runs in the Python worker for one partition: rows in, states bound, writes staged, rows out."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.bound.declared_states import DeclaredStates
from pyspark_ckpt.operators.bound.timers import BoundTimers, find_left_ms
from pyspark_ckpt.operators.declarations.operator import BATCH, HASH, ROW, TIME, Operator
from pyspark_ckpt.operators.declarations.processors import Context, KeyedProcessor, VectorProcessor
from pyspark_ckpt.operators.encoding.keys import group_by_key
from pyspark_ckpt.operators.encoding.stored_keys import KeyCodec, order_of
from pyspark_ckpt.operators.encoding.unsafe_rows import portions, read_rows
from pyspark_ckpt.operators.session.state_partition import check_place, check_planned
from pyspark_ckpt.operators.session.worker import WorkerSession, find_ticket, naming
from pyspark_ckpt.operators.task.firing import Firing
from pyspark_ckpt.operators.task.group_times import GroupTimes
from pyspark_ckpt.operators.task.row_buffer import RowBuffer, ranges
from pyspark_ckpt.operators.task.runs import Work
from pyspark_ckpt.operators.task.staging import finish, flush, spill, sweep
from pyspark_ckpt.state_store.errors import LifecycleError
from pyspark_ckpt.state_store.format.spark_hash import SEED, of_int
from pyspark_ckpt.state_store.transactions.ticket import Ticket

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.state import GroupState


RECORDS_CONF = "spark.sql.execution.arrow.maxRecordsPerBatch"
RECORDS = 10_000
"""Its default."""
HELD_BYTES = 16 << 20
"""Output that is held back by Spark until it has more frames than its setting says is pushed out behind so much."""
TIMERS_PART = 8
"""The part of the memory for rows that due timers may take, too."""


def frames_of(batches: Iterator[pa.RecordBatch], records: int) -> Iterator[pd.DataFrame]:
    """A frame of one row for each batch.

    Spark's worker holds frames until their rows are more than ``records``, and hands them over as one: so there are
    nulls behind HELD_BYTES of batches, which are no batches to the shim. They take 10 ms for 10,000 records, and are
    as many as Spark asks for: of more records more bytes are held.
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
    """Have the garbage collector pass over what is loaded: Spark has it look at everything after each task.

    Of the modules of pandas and Arrow alone that takes 30 ms. Cycles in what the worker's first task has loaded, its
    processor as well, stay as long as the worker.
    """
    if os.environ.get("SPARK_REUSE_WORKER"):  # Spark's own word: else there is no other task
        gc.collect()
        gc.freeze()


@dataclass(frozen=True)
class PartitionTask:
    """The function that Spark calls for a partition's only group."""

    operator: Operator
    processor: KeyedProcessor | VectorProcessor

    @property
    def __name__(self) -> str:
        """What Spark calls it in plans, where the shim's OneKeyedOperator looks for it."""
        return f"keyed(uid={self.operator.uid!r})"

    def __call__(self, key: tuple[int], chunks: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        """Process all rows of the partition; what they write is staged before the last output row is taken."""
        from pyspark import TaskContext

        task = TaskContext.get()
        if task is None:
            raise LifecycleError(f"Keyed operator {self.operator.uid!r} is called outside of a Spark task.")
        _settle()
        ticket = find_ticket(task.taskAttemptId(), self.operator.local_dir)
        check_planned(ticket, self.operator.uid, self.operator.partitions)
        check_place(ticket, self.operator.uid, of_int(int(key[0]), SEED))
        times = GroupTimes(self.operator, state)
        context = Context(
            batch_id=int(task.getLocalProperty("streaming.sql.batchId") or -1),
            partition=ticket.partition,
            processing_time_ms=times.processing_ms,
            watermark_ms=times.watermark_ms,
        )
        with naming(ticket, self.operator.uid):
            batches = self._run(chunks, ticket, times, context)
            yield from frames_of(batches, int(task.getLocalProperty(RECORDS_CONF) or RECORDS))

    def _run(
        self, chunks: Iterator[pd.DataFrame], ticket: Ticket, times: GroupTimes, context: Context
    ) -> Iterator[pa.RecordBatch]:
        codec = KeyCodec(self.operator.key_types)
        states = DeclaredStates(self.operator.uid, self.operator.states, self.operator.allow_non_restored_state)
        key_schema = {name: str(kind) for name, kind in zip(self.operator.by, self.operator.key_types, strict=True)}
        declared = states.descriptors(ticket, key_schema, {"max_parallelism": self.operator.max_parallelism})
        # Where keys are columns they need not be values that Python has.
        read = codec.plain if isinstance(self.processor, VectorProcessor) else codec
        session = WorkerSession(ticket, declared, read, times.now_ms, times.fired_ms)
        processor, bound = states.bind(self.processor, session)
        timers = [each for each in bound if isinstance(each, BoundTimers)]
        work = Work(self.operator, processor, context, session.position)
        folder = Path(ticket.staging)
        limit = self.operator.memory_bytes
        session.spill_beyond(limit, partial(spill, session, bound))
        rows = RowBuffer(self.operator.rows, limit, folder / f"{session.name}-rows")
        firing = Firing(timers, session, limit // TIMERS_PART, folder / f"{session.name}-timers")
        try:
            session.counts["late_rows"] += self._fill(rows, chunks, times.late_ms)
            firing.list_stored()
            sweep(session, bound, rows.count)
            for (some_rows, some_due), end in ranges([rows, firing.listed]):
                yield from chain(self._process(work, some_rows, codec), work.fire(firing, some_due))
                flush(session, bound, end)
            session.counts["fired_timers"] += firing.count
            times.set_time_out(timers, find_left_ms(session, self.operator.uid))
            finish(session, bound)
        finally:
            rows.close()
            firing.close()
            session.close()

    def _fill(self, buffer: RowBuffer, chunks: Iterator[pd.DataFrame], late_ms: int | None) -> int:
        """Take all rows but late ones; returns how many of those there were."""
        schema, late = self.operator.rows, 0
        for chunk in chunks:
            if late_ms is not None:
                in_time = chunk[TIME].to_numpy(np.int64) > late_ms * 1000
                late += len(chunk) - int(in_time.sum())
                chunk = chunk[in_time]  # noqa: PLW2901 - the rest of it
            rows, hashes = chunk[ROW].to_list(), pa.array(chunk[HASH].to_numpy(np.int32))
            for begin, end in portions(rows):
                columns = read_rows(rows[begin:end], self.operator.input).columns
                part = hashes.slice(begin, end - begin)
                buffer.add(pa.RecordBatch.from_arrays([*columns, part], schema=schema))
        return late

    def _process(self, work: Work, rows: pa.Table, codec: KeyCodec) -> Iterator[pa.RecordBatch]:
        if len(rows) == 0:
            return iter(())
        hashes = rows.column(HASH).to_numpy()
        given = rows.drop_columns([HASH])
        if self.operator.order_by:
            order = order_of([given.column(name).combine_chunks() for name in self.operator.order_by])
            given, hashes = given.take(pa.array(order)), hashes[order]
        keys, index = group_by_key(given, self.operator.by, codec, hashes)
        return work.process(keys, index, given)
