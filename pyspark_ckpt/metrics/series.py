"""All series, and what events of queries do to them. The exporters read them whenever they are asked."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pyspark_ckpt.metrics import families
from pyspark_ckpt.metrics.families import Family
from pyspark_ckpt.metrics.progress import Labels, Progress, Value, values_of

KEPT_S = 900.0
"""How long the counters of an ended query are shown. A scrape must find what its last batch has added."""


@dataclass
class _Query:
    """The series of a query, which go on when it is restarted."""

    name: str
    run_id: str
    ended_at: float | None = None
    restore_target_s: float = 0
    counters: dict[tuple[Family, Labels], float] = field(default_factory=dict)
    gauges: dict[tuple[Family, Labels], float] = field(default_factory=dict)

    def standing(self) -> dict[tuple[Family, Labels], float]:
        """Return the gauges that no batch changes."""
        return {(families.RESTORE_TARGET, ()): self.restore_target_s} if self.restore_target_s else {}

    def add(self, family: Family, labels: Labels = (), value: float = 1) -> None:
        """Add to a counter, which begins at 0 and never goes down: a clock that is set back makes times negative."""
        key = family, labels
        self.counters[key] = self.counters.get(key, 0) + max(value, 0)


class Series:
    """The series of all queries that a listener has told of. Safe to use from many threads."""

    def __init__(self, clock: Callable[[], float] = time.time, before_read: Callable[[], None] = lambda: None) -> None:
        """Show times of ``clock``, which is in seconds. ``before_read`` may tell of ends of queries."""
        self._clock = clock
        self._before_read = before_read
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}
        self._took_ns = 0
        self._failures = 0

    def start(self, query_id: str, run_id: str, name: str | None, restore_target_s: float) -> None:
        """Note that a run of a query begins."""
        with self._lock:
            self._forget_ended()
            query = self._of_run(query_id, run_id, name)
            query.name, query.run_id, query.ended_at = name or query_id, run_id, None
            query.restore_target_s = restore_target_s
            query.gauges = query.standing()
            query.add(families.STARTS)

    def knows(self, query_id: str) -> bool:
        """Return whether the query has series."""
        with self._lock:
            return query_id in self._queries

    def add(self, progress: Progress, restore_target_s: float) -> None:
        """Add what a batch did. ``restore_target_s`` counts for a query whose start was not reported.

        Raises ValueError if the progress has a value that is no finite number.
        """
        values = list(values_of(progress))
        for each in values:
            _require_number(*each)
        with self._lock:
            query = self._of_run(progress.id, progress.run_id, progress.name, restore_target_s)
            gauges = query.standing()
            gauges[families.LAST_BATCH_AT, ()] = self._clock()
            for family, labels, value in values:
                if family.kind == "counter":
                    query.add(family, labels, value)
                else:
                    gauges[family, labels] = value
            if query.run_id == progress.run_id and query.ended_at is None:
                query.gauges = gauges

    def end(self, query_id: str, run_id: str, *, failed: bool, error_class: str = "") -> None:
        """Note that a run has ended: the query's present values, such as sizes, go away at once."""
        with self._lock:
            query = self._of_run(query_id, run_id, None)
            query.add(families.EXCEPTIONS if failed else families.ENDS)
            if query.run_id == run_id:  # else the query has been restarted already
                now = query.ended_at = self._clock()
                query.gauges = {(families.LAST_EXCEPTION_AT, (error_class,)): now} if failed else {}
            self._forget_ended()

    def note_work(self, took_ns: int, *, failed: bool = False) -> None:
        """Count an event that the exporter has worked on."""
        with self._lock:
            self._took_ns += took_ns
            self._failures += failed

    def read(self, only: Family | None = None) -> list[Value]:
        """Return the series as they are now: family, values of all its labels, and value in the family's unit.

        ``only``: those of this family.
        """
        self._before_read()
        with self._lock:
            self._forget_ended()
            return [
                (family, tuple(map(_valid, labels)), value / family.scale if family.scale != 1 else value)
                for family, labels, value in self._all()
                if only is None or family is only
            ]

    def _all(self) -> Iterator[Value]:
        for query_id, query in self._queries.items():
            labels = (query.name, query_id)
            yield families.RUNNING, labels, float(query.ended_at is None)
            for series in (query.counters, query.gauges):
                for (family, more), value in series.items():
                    yield family, (*labels, *more), value
        yield families.OWN_TIME, (), self._took_ns
        yield families.OWN_FAILURES, (), self._failures

    def _of_run(self, query_id: str, run_id: str, name: str | None, restore_target_s: float = 0) -> _Query:
        """Return the query; if it began before there was a listener, it is new here."""
        if query_id not in self._queries:
            query = self._queries[query_id] = _Query(name or query_id, run_id, restore_target_s=restore_target_s)
            # A counter that begins at 1 would show no increase.
            for family in (families.BATCHES, families.INPUT_ROWS, families.ENDS, families.EXCEPTIONS):
                query.add(family, value=0)
        return self._queries[query_id]

    def _forget_ended(self) -> None:
        limit = self._clock() - KEPT_S
        self._queries = {
            query_id: query
            for query_id, query in self._queries.items()
            if query.ended_at is None or query.ended_at >= limit
        }


def _require_number(family: Family, labels: Labels, value: object) -> None:
    """Raise ValueError unless a value of a progress is a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{family.full_name} {labels} is {value!r}, no finite number")


def _valid(label: str) -> str:
    """Return a text as valid UTF-8: half of a surrogate pair would make the whole scrape fail."""
    return label.encode(errors="replace").decode()
