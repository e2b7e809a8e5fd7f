"""The progress of queries, in one form on every release of Spark."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


_LOOK_S = 0.1


def recent_progress(query: StreamingQuery) -> list[StreamingQueryProgress]:
    """The newest progress of a query: Spark 3.5 has it as plain JSON."""
    return [_made(each) for each in query.recentProgress]


def stop_after_batches(query: StreamingQuery, count: int = 1) -> None:
    """Stop a query when so many more batches have ended, or the query has."""
    seen = len(query.recentProgress)
    while query.isActive and len(query.recentProgress) < seen + count:
        time.sleep(_LOOK_S)
    query.stop()


def has_logged_offsets(checkpoint: Path) -> bool:
    """Return whether the query has begun: in real-time mode, Spark logs the offsets of a batch at its end."""
    return any((checkpoint / "offsets").glob("[0-9]*"))


def read_instant(text: str) -> datetime:
    """Return an instant of a progress, such as ``2026-01-01T00:00:00.000Z``."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 does not read Z


def _made(progress: Any) -> StreamingQueryProgress:  # noqa: ANN401 - JSON
    is_made = isinstance(progress, StreamingQueryProgress)
    return progress if is_made else StreamingQueryProgress.fromJson(progress)
