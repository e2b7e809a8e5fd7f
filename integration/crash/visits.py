"""Spark's own kind of processor, which may fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from integration.operators.processors import Visits

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import TimerValues

    from integration.crash.workload import Fault


class FailingVisits(Visits):
    """Visits whose tasks fail as a fault says."""

    def __init__(self, fault: Fault | None, weight: int) -> None:
        self.fault = fault
        self.weight = weight

    def take(self, rows: list[Any], timer_values: TimerValues) -> int:
        """Put rows into every state."""
        if self.fault is not None:
            self.fault.strike("midway")
        return super().take(rows, timer_values) * self.weight
