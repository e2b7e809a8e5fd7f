"""The progress of a query as plain JSON, on every release of Spark."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_RUN = "addBatch"
"""The key in ``durationMs`` of a progress whose batch ran; other progress reports that there was no data."""


def read_progress(query: StreamingQuery) -> list[dict[str, Any]]:
    """Return the newest progress of a query, oldest first. Spark keeps it after the query has ended."""
    return [_to_json(each) for each in query.recentProgress]


def read_last(query: StreamingQuery) -> dict[str, Any] | None:
    """Return the newest progress of a query; None if there is none yet."""
    last = query.lastProgress
    return None if last is None else _to_json(last)


def has_run(progress: dict[str, Any]) -> bool:
    """Return whether a progress is of a batch that ran."""
    return _RUN in progress.get("durationMs", {})


def end_s(progress: dict[str, Any]) -> float:
    """Return when a batch was committed, as Unix time by the clock of the driver."""
    began = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00"))  # Python 3.10 does not read Z
    return began.timestamp() + float(progress["durationMs"].get("triggerExecution", 0)) / 1000


def _to_json(progress: Any) -> dict[str, Any]:  # noqa: ANN401 - a class of PySpark, or a dict in Spark 3.5
    if isinstance(progress, dict) and not hasattr(progress, "json"):
        return progress
    found: dict[str, Any] = json.loads(progress.json)
    return found
