"""What runs in the Python worker for one partition: rows in, states bound, writes staged, rows out."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.operators.binding import bind
from pyspark_ckpt.operators.bound import Binding, Bound
from pyspark_ckpt.operators.evolution import evolved
from pyspark_ckpt.operators.expiry import LEAST_SWEPT, ExpiryIndex, index_name
from pyspark_ckpt.operators.keys import group_by_key
from pyspark_ckpt.operators.placement import murmur3_of_int
from pyspark_ckpt.operators.plan import BATCH, HASH, ROW, Operator, ProcessorState
from pyspark_ckpt.operators.processors import Context, KeyedProcessor, VectorProcessor
from pyspark_ckpt.operators.row_buffer import RowBuffer
from pyspark_ckpt.operators.runs import Work
from pyspark_ckpt.operators.states import State
from pyspark_ckpt.operators.stored_keys import KeyCodec
from pyspark_ckpt.operators.unsafe_rows import read_rows
from pyspark_ckpt.operators.worker_session import WorkerSession, find_ticket
from pyspark_ckpt.state_store.errors import LifecycleError
from pyspark_ckpt.state_store.meta import Descriptor, StoreMeta

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.state import GroupState

    from pyspark_ckpt.operators.ttl import Clock


@dataclass(frozen=True)
class PartitionTask:
    """The function that Spark calls for a partition's only group."""

    operator: Operator
    processor: KeyedProcessor | VectorProcessor

    def __call__(self, key: tuple[int], chunks: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        """Process all rows of the partition; what they write is staged before the last output row is taken."""
        import pandas as pd
        from pyspark import TaskContext

        task = TaskContext.get()
        if task is None:
            raise LifecycleError(f"Keyed operator {self.operator.uid!r} is called outside of a Spark task.")
        self._check_place(int(key[0]), task.partitionId())
        codec = KeyCodec(self.operator.key_types)
        context = Context(
            batch_id=int(task.getLocalProperty("streaming.sql.batchId") or -1),
            partition=task.partitionId(),
            processing_time_ms=state.getCurrentProcessingTimeMs(),
            watermark_ms=self._watermark_ms(state),
        )
        ticket = find_ticket(task.taskAttemptId(), self.operator.local_dir)
        now_ms: Mapping[Clock, int] = {"processing": context.processing_time_ms, "event": max(0, context.watermark_ms)}
        session = WorkerSession(ticket, self._declared(ticket.meta), self.operator.partitions, codec, now_ms)
        processor, bound = self._bound(session)
        work = Work(self.operator, processor, context, session.position)
        folder = Path(ticket.staging) / f"{session.name}-rows"
        buffer = RowBuffer(self.operator.rows, HASH, self.operator.memory_bytes, folder)
        try:
            self._fill(buffer, chunks)
            sweep(session, bound, buffer.count)
            for rows, end in buffer.ranges():
                hashes = rows.column(HASH).to_numpy()
                given = rows.drop_columns([HASH])
                if self.operator.order_by:
                    columns = [(name, "ascending") for name in self.operator.order_by]
                    order = pc.sort_indices(given, columns, null_placement="at_start")
                    given, hashes = given.take(order), hashes[order.to_numpy()]
                keys, index = group_by_key(given, self.operator.by, codec, hashes)
                for batch in work.run(keys, index, given):
                    yield pd.DataFrame({BATCH: [batch.serialize().to_pybytes()]})
                flush(session, bound, end)
        finally:
            buffer.close()
        finish(session, bound)

    def _fill(self, buffer: RowBuffer, chunks: Iterator[pd.DataFrame]) -> None:
        schema = self.operator.rows
        for chunk in chunks:
            columns = read_rows(chunk[ROW].to_list(), self.operator.input).columns
            hashes = pa.array(chunk[HASH].to_numpy(np.int32))
            buffer.add(pa.RecordBatch.from_arrays([*columns, hashes], schema=schema))

    def _check_place(self, route: int, partition: int) -> None:
        if murmur3_of_int(route) % self.operator.partitions != partition:
            raise LifecycleError(
                f"Keyed operator {self.operator.uid!r} was planned for {self.operator.partitions} partitions, "
                "and the query runs with another number: that of its checkpoint.",
                hint="Set spark.sql.shuffle.partitions to the number of the checkpoint before the query is built.",
            )

    def _declared(self, meta: StoreMeta) -> list[tuple[str, Descriptor]]:
        key_schema = {name: str(kind) for name, kind in zip(self.operator.by, self.operator.key_types, strict=True)}
        encoder = {"keyed": self.operator.uid, "max_parallelism": self.operator.max_parallelism}
        declared = []
        for each in self.operator.states:
            name = self._name(each)
            known = meta.state(name)
            stored = {} if known is None else known.descriptor.value_schema
            values = {what: evolved(stored.get(what), kind.schema) for what, kind in each.types.items()}
            kind = {**encoder, "kind": _kind(each.state)}
            declared.append((name, Descriptor(key_schema=key_schema, value_schema=values, key_encoder=kind)))
            if each.state.ttl is not None:
                index = Descriptor(
                    ordered=True, internal=True, key_schema=key_schema, key_encoder={**encoder, "kind": "expiry"}
                )
                declared.append((index_name(name), index))
        return declared

    def _name(self, declared: ProcessorState) -> str:
        return f"{self.operator.uid}/{declared.state.name}"

    def _watermark_ms(self, state: GroupState) -> int:
        return state.getCurrentWatermarkMs() if self.operator.has_watermark else -1

    def _bound(self, session: WorkerSession) -> tuple[KeyedProcessor | VectorProcessor, list[Bound]]:
        """A copy of the processor whose states are those of this task."""
        processor = copy.copy(self.processor)
        bound = []
        for each in self.operator.states:
            kinds = {what: kind.arrow for what, kind in each.types.items()}
            name = self._name(each)
            index = None if each.state.ttl is None else session.numbers[index_name(name)]
            state = bind(Binding(each.state, kinds, session.numbers[name], index, session))
            setattr(processor, each.attribute, state)
            bound.append(state)
        return processor, bound


def sweep(session: WorkerSession, bound: Sequence[Bound], rows: int) -> None:
    """Free expired rows: of each state no more than twice the batch's ``rows``, or LEAST_SWEPT."""
    for each in bound:
        session.expired += each.sweep(max(LEAST_SWEPT, 2 * rows))


def flush(session: WorkerSession, bound: Sequence[Bound], end: bytes | None) -> None:
    """Stage what was written for keys below ``end`` (all keys: None), and let go of it: their turn is over."""
    session.stage(row for each in _tables(bound) for row in each.flush(end))


def finish(session: WorkerSession, bound: Sequence[Bound]) -> None:
    """Publish what was staged, after the last key: the last act."""
    flush(session, bound, None)
    session.publish({each.number: each.change for each in _tables(bound)})


def _tables(bound: Sequence[Bound]) -> list[Bound | ExpiryIndex]:
    """All states of the operator in the order of their numbers."""
    indexes = [each.index for each in bound if each.index is not None]
    return sorted([*bound, *indexes], key=lambda each: each.number)


def _kind(state: State) -> str:
    return next(kind.__name__ for kind in type(state).__mro__ if kind.__module__ == State.__module__)
