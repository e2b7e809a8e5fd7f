"""The families of metrics that are exported: their names, kinds, units and labels.

Most are rows of ``state_store/metrics.json``. The others are Spark's own numbers of queries and their operators, and
the numbers of the exporter itself.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

import pyspark_ckpt.state_store

Kind: TypeAlias = Literal["counter", "gauge"]
Unit: TypeAlias = Literal["", "seconds", "bytes"]

PREFIX = "ckpt"
QUERY = ("query", "query_id")
OPERATOR = (*QUERY, "operator", "operator_name", "uid")
STORE = (*OPERATOR, "partition", "store")
LE = "le"
"""Up to how many seconds the counts of a histogram go: Prometheus' name of the label."""
LATENCY = "ckptLiveRows"
"""The name in a progress of the histogram of latencies in real-time mode."""
LIVE_GROUPS = "ckptLiveGroups"
"""The name in a progress of a metric that operators in real-time mode have alone."""

_WORD = re.compile(r"[A-Z][a-z0-9]*")
_MS = 1000
"""The scale of values in milliseconds."""


@dataclass(frozen=True)
class Family:
    """Series of one meaning. A value is divided by ``scale``, which makes milliseconds seconds."""

    name: str
    kind: Kind
    unit: Unit
    text: str
    labels: tuple[str, ...]
    scale: int = 1

    @property
    def full_name(self) -> str:
        """The name in Prometheus, without the ``_total`` of counters."""
        return "_".join(filter(None, (PREFIX, self.name, self.unit)))

    @property
    def series_name(self) -> str:
        """The name of the series in Prometheus."""
        return f"{self.full_name}_total" if self.kind == "counter" else self.full_name


class _Row(msgspec.Struct, frozen=True):
    """The parts of a row of ``metrics.json`` that are read."""

    name: str
    kind: Literal["sum", "size", "time"]
    text: str
    now: bool = False
    store: bool = False
    up_to_ms: tuple[int, ...] = ()


class _Table(msgspec.Struct, frozen=True):
    """The parts of ``metrics.json`` that are read."""

    metrics: tuple[_Row, ...]


@cache
def own_families() -> dict[str, Family]:
    """Return the families of this package's metrics, by the names that Spark's progress has for them."""
    return {row.name: _family(row) for row in _table().metrics}


@cache
def _table() -> _Table:
    folder = Path(pyspark_ckpt.state_store.__file__ or "").parent
    return msgspec.json.decode((folder / "metrics.json").read_bytes(), type=_Table)


@cache
def latency_limits_ms() -> dict[str, float]:
    """Return up to how many ms each count of LATENCY goes, by the name of the count in a progress, in order."""
    (limits,) = (row.up_to_ms for row in _table().metrics if row.name == LATENCY)
    return {**{f"{LATENCY}.up_to_{ms}_ms": float(ms) for ms in limits}, f"{LATENCY}.later": math.inf}


def _family(row: _Row) -> Family:
    words = [word.lower() for word in _WORD.findall(row.name.removeprefix(PREFIX))]
    unit: Unit = ""
    if words[-1] == "ms":
        words, unit = [word for word in words if word not in {"time", "ms"}], "seconds"
    elif "bytes" in words:
        words, unit = [word for word in words if word != "bytes"], "bytes"
    kind: Kind = "gauge" if row.now else "counter"
    labels: tuple[str, ...] = STORE if row.store else (*OPERATOR, LE) if row.up_to_ms else OPERATOR
    text = row.text[0].upper() + row.text[1:]
    return Family("_".join(words), kind, unit, text, labels, _MS if unit == "seconds" else 1)


def _of_query(name: str, kind: Kind, text: str, unit: Unit = "", scale: int = 1, more: tuple[str, ...] = ()) -> Family:
    return Family(name, kind, unit, text, (*QUERY, *more), scale)


def _of_operator(name: str, kind: Kind, text: str, unit: Unit = "", scale: int = 1) -> Family:
    return Family(name, kind, unit, text, OPERATOR, scale)


# Of a query.
RUNNING = _of_query("query_running", "gauge", "1 while the query runs, and 0 for some minutes after its end")
STARTS = _of_query("query_starts", "counter", "Starts of the query")
ENDS = _of_query("query_ends", "counter", "Ends of the query without an exception")
EXCEPTIONS = _of_query("query_exceptions", "counter", "Ends of the query by an exception")
LAST_EXCEPTION_AT = _of_query(
    "query_last_exception_timestamp",
    "gauge",
    "When an exception ended the query, in Unix time, until it is restarted",
    "seconds",
    more=("error_class",),
)
RESTORE_TARGET = _of_query(
    "restore_target", "gauge", "The option restoreTarget with which the query started", "seconds"
)
BATCHES = _of_query("batches", "counter", "Finished batches")
BATCH_TIME = _of_query("batch_duration", "counter", "Time of finished batches", "seconds", _MS)
LAST_BATCH_TIME = _of_query("last_batch_duration", "gauge", "Time of the last finished batch", "seconds", _MS)
LAST_BATCH_AT = _of_query("last_batch_timestamp", "gauge", "When the last batch finished, in Unix time", "seconds")
LAST_BATCH_ID = _of_query("last_batch_id", "gauge", "Number of the last finished batch")
PHASE_TIME = _of_query(
    "batch_phase_duration",
    "counter",
    "Time of finished batches, by Spark's phases of a batch",
    "seconds",
    _MS,
    more=("phase",),
)
INPUT_ROWS = _of_query("input_rows", "counter", "Rows that the query has read from its sources")
WATERMARK = _of_query("watermark_timestamp", "gauge", "The watermark of the query, in Unix time", "seconds", _MS)

# Of an operator: Spark's own numbers, by their names in its progress.
STANDARD = {
    "numRowsTotal": _of_operator("state_rows", "gauge", "Rows of state"),
    "numRowsUpdated": _of_operator("state_rows_updated", "counter", "Rows of state that were written"),
    "numRowsRemoved": _of_operator(
        "state_rows_removed", "counter", "Rows of state that were removed, also if there was none"
    ),
    "numRowsDroppedByWatermark": _of_operator(
        "state_rows_dropped_by_watermark", "counter", "Input rows that Spark dropped because they were late"
    ),
    "memoryUsedBytes": _of_operator("state_memory", "gauge", "Memory of the state stores", "bytes"),
    "allUpdatesTimeMs": _of_operator(
        "state_updates", "counter", "Time to process rows and update state", "seconds", _MS
    ),
    "allRemovalsTimeMs": _of_operator("state_removals", "counter", "Time to find and remove old state", "seconds", _MS),
    "commitTimeMs": _of_operator("state_commits", "counter", "Time to commit state", "seconds", _MS),
    "numShufflePartitions": _of_operator("state_partitions", "gauge", "Partitions of the operator"),
    "numStateStoreInstances": _of_operator("state_stores", "gauge", "State stores of the operator"),
}
ADDED = Family("user_counter", "counter", "", "Counters of programs: what was added", (*OPERATOR, "counter"))
SUBTRACTED = Family(
    "user_counter_subtractions",
    "counter",
    "",
    "Counters of programs: sums of batches below zero",
    (*OPERATOR, "counter"),
)
OTHER = Family(
    "spark_metric",
    "gauge",
    "",
    "Other custom metrics of the operator: their value in the last batch, in Spark's unit",
    (*OPERATOR, "metric", "partition", "store"),
)

# Of the exporter.
OWN_TIME = Family("exporter_duration", "counter", "seconds", "Time in which the exporter worked on events", (), 10**9)
OWN_FAILURES = Family("exporter_failures", "counter", "", "Events that the exporter could not work on", ())

_OF_QUERIES = (
    *(RUNNING, STARTS, ENDS, EXCEPTIONS, LAST_EXCEPTION_AT, BATCHES, BATCH_TIME, LAST_BATCH_TIME, LAST_BATCH_AT),
    *(LAST_BATCH_ID, PHASE_TIME, INPUT_ROWS, WATERMARK, RESTORE_TARGET),
)


@cache
def all_families() -> tuple[Family, ...]:
    """Return every family, in the order in which they are shown."""
    own = own_families().values()
    return (*_OF_QUERIES, *STANDARD.values(), *own, ADDED, SUBTRACTED, OTHER, OWN_TIME, OWN_FAILURES)
