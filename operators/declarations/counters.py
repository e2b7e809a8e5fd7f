"""Counters that a processor declares: its own metrics in the progress of its query."""

from __future__ import annotations

from collections import Counter as Counts

from typing_extensions import override

from pyspark_ckpt.operators.declarations.states import Declared
from pyspark_ckpt.operators.types.conversions import CONVERT, whole_number
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.json_objects import MAX_LONG


class MetricCounter(Declared):
    """A metric ``<uid>/<name>`` in the operator's ``customMetrics``: the sum of a batch's additions in all partitions.

    It is exact: a task's additions count when the task commits, so retries are not counted twice. It is not state: each
    batch begins at 0.
    """

    change_calls = ("add({})", "add({})")

    def add(self, count: int = 1) -> None:  # noqa: ARG002 - a declaration: the bound counter does the work
        """Add ``count``, a Python or NumPy integer, which may be negative.

        Raises InvalidInputError (no integer, a sum beyond 64 bits), LifecycleError (outside of a running query).
        """
        self._unbound()


class BoundMetricCounter(MetricCounter):
    """See MetricCounter."""

    def __init__(self, name: str, metric: str, counts: Counts[str]) -> None:
        """Count under ``metric``."""
        super().__init__(name)
        self._metric = metric
        self._counts = counts

    @override
    def add(self, count: int = 1) -> None:
        try:
            counted = self._counts[self._metric] + whole_number(count)
        except TypeError as problem:
            raise InvalidInputError(
                f"MetricCounter {self.name!r} counts integers: {problem}.", hint=CONVERT
            ) from problem
        if abs(counted) > MAX_LONG:
            raise InvalidInputError(f"MetricCounter {self.name!r} would be {counted}; its limit is {MAX_LONG}.")
        self._counts[self._metric] = counted


def metric_name(uid: str, counter: MetricCounter) -> str:
    """Return the name of an operator's counter in the query's progress."""
    return f"{uid}/{counter.name}"
