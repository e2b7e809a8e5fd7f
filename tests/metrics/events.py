"""Progress of queries as Spark shows it, made up."""

from __future__ import annotations

import json
from typing import Any

from pyspark_ckpt.metrics.progress import read_progress
from pyspark_ckpt.metrics.series import Series

TARGET_S = 60.0
QUERY = "11111111-1111-1111-1111-111111111111"
OTHER = "22222222-2222-2222-2222-222222222222"


def operator(name: str = "keyed(uid='visits')", /, *, rows: int = 7, **custom: float) -> dict[str, Any]:
    """An entry of ``stateOperators``."""
    return {
        "operatorName": name,
        "numRowsTotal": rows,
        "numRowsUpdated": 5,
        "numRowsRemoved": 1,
        "numRowsDroppedByWatermark": 0,
        "allUpdatesTimeMs": 200,
        "allRemovalsTimeMs": 0,
        "commitTimeMs": 250,
        "memoryUsedBytes": 4096,
        "numShufflePartitions": 2,
        "numStateStoreInstances": 2,
        "customMetrics": custom,
    }


def batch(*operators: dict[str, Any], query: str = QUERY, run: str = "run-1", **more: Any) -> str:  # noqa: ANN401
    """The JSON of a progress."""
    progress = {
        "id": query,
        "runId": run,
        "name": None,
        "batchId": 3,
        "numInputRows": 20,
        "durationMs": {"triggerExecution": 500, "addBatch": 400},
        "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
        "stateOperators": list(operators),
    }
    return json.dumps({**progress, **more})


def add(series: Series, text: str) -> None:
    """Tell of a batch."""
    series.add(read_progress(text), TARGET_S)


def shown(series: Series, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """The series of a name in Prometheus, by the values of these labels, or of all."""
    found = {}
    for family, values, value in series.read():
        if family.series_name == name:
            of = dict(zip(family.labels, values, strict=True))
            key = tuple(of[label] for label in labels or family.labels)
            assert key not in found, f"{name} has {key} twice"
            found[key] = value
    return found
