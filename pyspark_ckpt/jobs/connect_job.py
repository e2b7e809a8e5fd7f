"""Run the tasks of offline work on the cluster of a Spark Connect server.

A Connect client has no SparkContext. The tasks travel in the function of a query, whose Python workers run them.
Spark's own serializers pickle them, as they do all programs and results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_ckpt.state_store.local.worker_process import run_task, take_results

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_ckpt.state_store.local.worker_process import Task
    from pyspark_ckpt.state_store.redistribution.jobs import Progress

_OUTCOMES = "number bigint, outcome binary"


@dataclass(frozen=True)
class ConnectJob:
    """A runner whose tasks are a query of a Connect session. Spark reports no progress before the end."""

    session: SparkSession

    @cached_property
    def width(self) -> int:
        """The number of partitions that Spark gives a range, which is its number of cores. Finding out takes a job."""
        return self.session.range(1 << 20).selectExpr("spark_partition_id() AS p").distinct().count()

    def __call__(self, tasks: Sequence[Task], progress: Progress) -> list[Any]:
        """See Runner. An error is raised unchanged. Spark does not repeat a task that has raised one."""
        if not tasks:
            return []
        from pyspark.serializers import CPickleSerializer  # noqa: PLC0415 - see the docstring of the package

        progress(0, len(tasks))
        numbers = self.session.range(0, len(tasks), 1, min(len(tasks), self.width))
        rows = numbers.mapInArrow(partial(_run, tuple(tasks)), _OUTCOMES).collect()
        serializer: Any = CPickleSerializer()
        outcomes = {row.number: serializer.loads(row.outcome) for row in rows}
        progress(len(tasks), len(tasks))
        return take_results(outcomes[number] for number in range(len(tasks)))


def _run(tasks: Sequence[Task], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark.serializers import CPickleSerializer  # noqa: PLC0415 - see the docstring of the package

    serializer: Any = CPickleSerializer()
    for batch in batches:
        for number in batch.column("id").to_pylist():
            outcome = serializer.dumps(run_task(tasks[number]))
            columns = [pa.array([number], pa.int64()), pa.array([outcome], pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, ["number", "outcome"])
