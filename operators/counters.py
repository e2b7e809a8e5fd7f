"""Counters as a processor declares them: numbers of its own in the progress of its query."""

from __future__ import annotations

from collections import Counter as Counts

from pyspark_ckpt.operators.states import Declared


class Counter(Declared):
    """A metric ``<uid>/<name>`` among the operator's ``customMetrics``: what a batch has added, over all partitions.

    Exact: what a task adds counts with its commit, so once however often the task is tried.
    """

    change_calls = ("add({})", "add({})")

    def add(self, count: int = 1) -> None:  # noqa: ARG002 - a declaration: the bound counter does the work
        """Count on."""
        self._unbound()


class BoundCounter(Counter):
    """See Counter."""

    def __init__(self, name: str, metric: str, counts: Counts[str]) -> None:
        """Count under ``metric``."""
        super().__init__(name)
        self._metric = metric
        self._counts = counts

    def add(self, count: int = 1) -> None:
        """See Counter."""
        self._counts[self._metric] += count


def metric_name(uid: str, counter: Counter) -> str:
    """What the counter of an operator is called in the query's progress."""
    return f"{uid}/{counter.name}"
