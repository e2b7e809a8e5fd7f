"""Run the tasks of offline work as a Spark job.

Python workers import this module. It imports little else of the package, because imports take most of the time of a
short task.
"""

from __future__ import annotations

import gc
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from pyspark_ckpt.state_store.local.worker_process import Outcome, Task, run_task, take_results
from pyspark_ckpt.state_store.redistribution.jobs import Progress

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

SLICES_A_CORE = 2
"""Tasks of a Spark job per core. With more of them, a slow task leaves fewer cores idle."""
QUICK_BYTES = 1 << 30
"""A job that moves less has one task per core: Spark needs up to 80 ms for each Python task."""
_LOOK_S = 0.05


@dataclass(frozen=True)
class SparkJob:
    """A runner that moves ``size_bytes``: each Spark task runs some of the tasks, one after the other."""

    session: SparkSession
    description: str
    size_bytes: int

    @property
    def width(self) -> int:
        """The number of cores."""
        return self.session.sparkContext.defaultParallelism

    def __call__(self, tasks: Sequence[Task], progress: Progress) -> list[Any]:
        """See Runner. Spark retries retryable errors first; the last error is then raised unchanged."""
        if not tasks:
            return []
        context = self.session.sparkContext
        slices = min(len(tasks), self.width * (SLICES_A_CORE if self.size_bytes >= QUICK_BYTES else 1))
        group = f"pyspark-ckpt-{time.monotonic_ns()}"
        attempted = partial(_outcome, attempts=_attempts(context))
        outcomes: list[Outcome] = []
        problems: list[Exception] = []

        def run() -> None:
            context.setJobGroup(group, self.description)
            try:
                outcomes.extend(context.parallelize(tasks, slices).map(attempted).collect())
            except Exception as problem:  # noqa: BLE001 - raised below, in the caller's thread
                problems.append(problem)

        from pyspark import InheritableThread  # noqa: PLC0415 - see the docstring of the package

        thread = InheritableThread(target=run)
        thread.start()
        while thread.is_alive():
            thread.join(_LOOK_S)
            progress(_count_finished_tasks(context, group) * len(tasks) // slices, len(tasks))
        if problems:
            raise problems[0]
        return take_results(outcomes)


def _outcome(task: Task, attempts: int) -> Outcome:
    """Return the result or the error of a task. A retryable error is raised for Spark, except in the last attempt."""
    from pyspark import TaskContext  # noqa: PLC0415 - see the docstring of the package

    _settle()
    result, problem = run_task(task)
    context = TaskContext.get()
    if problem is not None and problem.retryable and context is not None and context.attemptNumber() + 1 < attempts:
        raise problem
    return result, problem


@cache
def _settle() -> None:
    """Exclude imported modules from garbage collection: Spark collects after each task, which would take 30 ms."""
    if os.environ.get("SPARK_REUSE_WORKER"):  # set by Spark; without it this worker runs no other task
        gc.freeze()


def _attempts(context: SparkContext) -> int:
    """Return how often Spark tries a task: four times with ``local[2, 4]``, once if a local master does not say."""
    local = master_here(context)
    return int(local[3] or 1) if local else int(context.getConf().get("spark.task.maxFailures", "4") or 4)


def _count_finished_tasks(context: Any, group: str) -> int:  # noqa: ANN401 - a SparkContext
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)


def master_here(context: SparkContext) -> re.Match[str] | None:
    """Match the master of a session that runs in its driver alone; None for a cluster."""
    return re.fullmatch(r"local(\[[^,]*(,\s*(\d+))?\s*\])?", context.master or "")
