"""The GroupState that Spark passes to the task of a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import StructType

from pyspark_ckpt.operators.task.group_times import NO_WATERMARK
from pyspark_ckpt.state_store.format.spark_groups import NO_TIME_OUT, GroupTimesRow

if TYPE_CHECKING:
    from pyspark_ckpt.testing.local_query import Clocks


def make_group(row: GroupTimesRow | None, time_out_conf: str, clocks: Clocks, *, timed_out: bool) -> GroupState:
    """Return the state of the group that has the stored ``row``."""
    value: Any = None if row is None else (row.watermark_ms, row.processing_ms)
    return GroupState(
        optionalValue=value,
        batchProcessingTimeMs=clocks.processing_ms,
        eventTimeWatermarkMs=max(0, clocks.watermark_ms),
        timeoutConf=time_out_conf,
        hasTimedOut=timed_out,
        watermarkPresent=clocks.watermark_ms != NO_WATERMARK,
        defined=row is not None,
        updated=False,
        removed=False,
        timeoutTimestamp=GroupState.NO_TIMESTAMP,
        keyAsUnsafe=b"",
        valueSchema=StructType(),
    )


def read_group(group: GroupState) -> GroupTimesRow | None:
    """Return the row that Spark stores after a call; None if there is none."""
    if not group.exists:
        return None
    set_ms = group._timeout_timestamp  # noqa: SLF001 - Spark's worker reads it there
    watermark_ms, processing_ms = group.get
    return GroupTimesRow(watermark_ms, processing_ms, NO_TIME_OUT if set_ms == GroupState.NO_TIMESTAMP else int(set_ms))
