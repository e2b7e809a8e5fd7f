"""One batch, as the query in this process reports it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from pyspark_ckpt.metrics.progress import instant_ms
from pyspark_ckpt.offline.descriptions.json_forms import Fields
from pyspark_ckpt.web.pace.backlog import count_backlog
from pyspark_ckpt.web.pace.latencies import describe_latency

WHOLE = "triggerExecution"
"""The name of the whole batch among the times of its phases."""


def describe_batch(progress: Mapping[str, Any]) -> Fields:
    """Return what is shown of a batch: its rows and rates, its phases, its watermark and its state.

    ``watermark_lag_ms``: how far the watermark is behind the clock of the batch. Raises ValueError (an instant that is
    none).
    """
    operators: Sequence[Mapping[str, Any]] = progress.get("stateOperators", ())
    phases = {str(name): int(took_ms) for name, took_ms in progress.get("durationMs", {}).items()}
    at_ms = instant_ms(progress.get("timestamp", ""))
    watermark_ms = instant_ms(progress.get("eventTime", {}).get("watermark", "")) or None

    def total(name: str) -> int:
        return sum(int(each.get(name, 0)) for each in operators)

    def total_of_ours(name: str) -> int:
        return sum(int(each.get("customMetrics", {}).get(name, 0)) for each in operators)

    return {
        "batch": progress.get("batchId"),
        "at_s": at_ms / 1000 or None,
        "input_rows": progress.get("numInputRows", 0),
        "input_rows_per_s": None,
        "processed_rows_per_s": progress.get("processedRowsPerSecond"),
        "backlog": count_backlog(progress.get("sources", ())),
        "batch_ms": phases.get(WHOLE),
        "phases": {name: took_ms for name, took_ms in phases.items() if name != WHOLE},
        "watermark_ms": watermark_ms,
        "watermark_lag_ms": None if watermark_ms is None else at_ms - watermark_ms,
        "late_rows": total("numRowsDroppedByWatermark"),
        "state_rows": total("numRowsTotal"),
        "state_bytes": total("memoryUsedBytes"),
        "commit_ms": total("commitTimeMs"),
        "uploaded_bytes": total_of_ours("ckptUploadedBytes"),
        "write_requests": total_of_ours("ckptWriteRequests"),
        "read_requests": total_of_ours("ckptReadRequests"),
        "list_requests": total_of_ours("ckptListRequests"),
        "delete_requests": total_of_ours("ckptDeleteRequests"),
        "restores": total_of_ours("ckptRestores"),
        "full_disks": total_of_ours("ckptFullDisks"),
        "expired_rows_left": total_of_ours("ckptExpiredRowsLeft"),
        **describe_latency(operators, phases.get(WHOLE, 0) / 1000),
    }


def describe_batches(batches: Sequence[Mapping[str, Any]]) -> list[Fields]:
    """Describe batches, which are given oldest first, newest first.

    The rate of input is measured between the starts of two batches, so the first batch has none. Spark's own rate
    counts from its last look at the sources, which may be just before the batch. Raises as ``describe_batch``.
    """
    described = [describe_batch(each) for each in batches]
    for before, each in pairwise(described):
        since_s = (each["at_s"] or 0) - (before["at_s"] or 0)
        each["input_rows_per_s"] = each["input_rows"] / since_s if before["at_s"] and since_s > 0 else None
    return described[::-1]


def sum_phases(batches: Sequence[Fields]) -> list[Fields]:
    """Return the phases of batches, the longest first: the median time of each, and its share of the whole batch."""
    times: dict[str, list[int]] = {}
    for each in batches:
        for name, took_ms in each["phases"].items():
            times.setdefault(name, []).append(took_ms)
    whole_ms = sum(each["batch_ms"] or 0 for each in batches)
    phases = [
        {
            "phase": name,
            "median_ms": median(found),
            "most_ms": max(found),
            "share": sum(found) / whole_ms if whole_ms else None,
        }
        for name, found in times.items()
    ]
    return sorted(phases, key=lambda each: (-each["median_ms"], each["phase"]))
