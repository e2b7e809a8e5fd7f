"""The task of one partition in the Python worker: find its transaction, process its rows, answer with its output."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.operators.declarations.operator import ROUTE, KeyedOperator
from pyspark_ckpt.operators.declarations.processors import (
    Context,
    KeyedProcessor,
    VectorProcessor,
)
from pyspark_ckpt.operators.session.answers import Answers
from pyspark_ckpt.operators.session.state_partition import check_place, check_planned
from pyspark_ckpt.operators.session.told_operators import find_own, read_told
from pyspark_ckpt.operators.session.worker import find_ticket, naming
from pyspark_ckpt.operators.task.arrivals import split_by_input
from pyspark_ckpt.operators.task.group_times import GroupTimes, read_group, require_present
from pyspark_ckpt.operators.task.partition_run import FEW, PartitionRun
from pyspark_ckpt.state_store.errors import InternalError, LifecycleError
from pyspark_ckpt.state_store.format.spark_hash import SEED, hash_int
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.transactions.ticket import Ticket


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


def _read_clock_ms() -> int:
    return time.time_ns() // 1_000_000


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
        """Process all rows of the partition: see Answers. Writes are staged before the last batch is taken."""
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
            here, column = self._check_places(batches, ticket), self.operator.time
            names, answers = tuple(each.name for each in told), Answers(self.operator.output)
            with closing(PartitionRun(self.operator, self.processor, ticket, times, context, names)) as run:
                if own.is_live:
                    groups = (split_by_input([batch], column) for batch in here)
                    for output in run.process_live(groups, _read_clock_ms):
                        yield from answers.whole(output)
                else:
                    yield from map(answers.some, run.process(split_by_input(here, column)))
            yield answers.end(b"" if times.new_row is None else times.new_row.encode())

    def _check_places(self, batches: Iterable[pa.RecordBatch], ticket: Ticket) -> Iterator[pa.RecordBatch]:
        """Yield batches whose rows all belong to the partition of the ticket. Raises InvalidInputError."""
        seen: set[int] = set()
        for batch in batches:
            routes = batch.column(ROUTE)
            for route in set((pc.unique(routes) if len(routes) > FEW else routes).to_pylist()) - seen:
                check_place(ticket, self.operator.uid, hash_int(route, SEED))
                seen.add(route)
            yield batch
