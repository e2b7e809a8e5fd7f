"""The progress of queries, in one form on every release of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def recent_progress(query: StreamingQuery) -> list[StreamingQueryProgress]:
    """The newest progress of a query: Spark 3.5 has it as plain JSON."""
    return [_made(each) for each in query.recentProgress]


def _made(progress: Any) -> StreamingQueryProgress:  # noqa: ANN401 - JSON
    is_made = isinstance(progress, StreamingQueryProgress)
    return progress if is_made else StreamingQueryProgress.fromJson(progress)
