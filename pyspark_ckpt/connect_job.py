"""Run the tasks of offline work on the cluster of a Spark Connect server.

A Connect client has no SparkContext. The tasks are the rows of a frame, which Python workers of the cluster run.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_ckpt.state_store.errors import CkptError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_ckpt.state_store.local.worker_process import Task
    from pyspark_ckpt.state_store.redistribution.jobs import Progress

_TASKS = "number int, task binary"
_OUTCOMES = "number int, outcome binary"


@dataclass(frozen=True)
class ConnectJob:
    """A runner whose tasks are a query of a Connect session. Spark does not tell its progress before the end."""

    session: SparkSession

    @property
    def width(self) -> int:
        """The number of partitions that Spark would give to a small frame."""
        return max(
            1, int(self.session.conf.get("spark.sql.leafNodeDefaultParallelism", None) or 0) or _cores(self.session)
        )

    def __call__(self, tasks: Sequence[Task], progress: Progress) -> list[Any]:
        """See Runner. An error is raised unchanged; Spark does not repeat a task that raised one."""
        if not tasks:
            return []
        progress(0, len(tasks))
        rows = [(number, pickle.dumps(task)) for number, task in enumerate(tasks)]
        frame = self.session.createDataFrame(rows, _TASKS).repartition(min(len(tasks), self.width), "number")
        outcomes = {row.number: pickle.loads(row.outcome) for row in frame.mapInArrow(_run, _OUTCOMES).collect()}  # noqa: S301 - our own workers wrote it
        progress(len(tasks), len(tasks))
        for number in range(len(tasks)):
            if (problem := outcomes[number][1]) is not None:
                raise problem
        return [outcomes[number][0] for number in range(len(tasks))]


def _cores(session: SparkSession) -> int:
    return session.range(1 << 20).selectExpr("spark_partition_id() AS p").distinct().count()


def _run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number, task in zip(batch.column("number").to_pylist(), batch.column("task").to_pylist(), strict=True):
            try:
                outcome: tuple[Any, CkptError | None] = pickle.loads(task)(), None  # noqa: S301 - the client sent it
            except CkptError as problem:
                outcome = None, problem
            yield pa.RecordBatch.from_pydict(
                {"number": pa.array([number], pa.int32()), "outcome": pa.array([pickle.dumps(outcome)], pa.binary())}
            )
