"""``with_watermark()``: a watermark that does not wait for an input without rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark_ckpt.operators.declarations.durations import milliseconds
from pyspark_ckpt.operators.frames import Columns, find_names, quote, require_frame
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.extras import require_jar
from pyspark_ckpt.state_store.json_objects import MAX_LONG

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql import DataFrame

IDLE_AFTER = "ckpt.idleAfterMs"
"""The key in the metadata of a column by which the jar knows an input that can be idle (IdleInputs.Mark)."""

MAX_IDLE_AFTER_MS = MAX_LONG // 2
"""The jar adds the time of a batch, and the sum must be a long, too."""


def with_watermark(frame: DataFrame, event_time: str, delay: str, *, idle_after: str | timedelta) -> DataFrame:
    """Return ``frame.withWatermark(event_time, delay)``, without holding up the query while this input has no rows.

    A query has one watermark: the earliest of its inputs. An input that has had no rows for ``idle_after``, a duration
    like "1 minute" in processing time, is idle and does not count until its next row. Then its rows that are older than
    the query's watermark are late, as in Spark. If all inputs are idle, the watermark stands still. Restarts,
    savepoints and restores change none of this: the checkpoint keeps how long an input has been silent.

    ``event_time`` and ``delay`` are as for ``withWatermark``. Raises InvalidInputError (no frame, an unknown column, a
    duration that is not more than 0 or too long, a session without the jar).
    """
    who = "with_watermark()"
    require_frame(frame, who)
    (column,) = find_names(Columns.of(frame), (event_time,), who, "with the event time")
    idle_after_ms = read_idle_after_ms(idle_after, who)
    require_jar(is_there=frame.sparkSession.catalog.functionExists("ckpt_row"))
    mark = {**frame.schema[column].metadata, IDLE_AFTER: idle_after_ms}
    marked = _with_metadata(frame, column, mark).withWatermark(quote(column), delay)
    # Not further: another withWatermark may follow, in this query or in one that reads its output.
    metadata = {name: value for name, value in marked.schema[column].metadata.items() if name != IDLE_AFTER}
    return _with_metadata(marked, column, metadata)


def _with_metadata(frame: DataFrame, column: str, metadata: dict[str, Any]) -> DataFrame:
    """Return ``frame.withMetadata``, which reads its name as an expression."""
    if not set(column) & set(".`"):
        return frame.withMetadata(column, metadata)
    from pyspark.sql import functions as f

    with_it = f.col(quote(column)).alias(column, metadata=metadata)
    return frame.select(*(with_it if name == column else f.col(quote(name)) for name in frame.columns))


def read_idle_after_ms(idle_after: object, who: str) -> int:
    """Return a duration in milliseconds, from 1 to MAX_IDLE_AFTER_MS. Raises InvalidInputError."""
    found = milliseconds(idle_after)
    if found < 1:
        raise InvalidInputError(f"{who}: idle_after is {idle_after!r}, and must be at least 1 millisecond.")
    if found > MAX_IDLE_AFTER_MS:
        raise InvalidInputError(
            f"{who}: idle_after is {idle_after!r}, and must be at most {MAX_IDLE_AFTER_MS} milliseconds.",
            hint="For an input that always counts, use Spark's withWatermark.",
        )
    return found
