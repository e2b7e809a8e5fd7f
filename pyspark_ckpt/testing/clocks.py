"""The clocks of a harness: how they are moved, and which groups are due by them."""

from __future__ import annotations

from datetime import datetime, timedelta

from pyspark_ckpt.operators.declarations.durations import milliseconds
from pyspark_ckpt.operators.declarations.operator import KeyedOperator
from pyspark_ckpt.operators.session.told_operators import Clocks
from pyspark_ckpt.operators.types.conversions import EPOCH
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.spark_groups import NO_TIME_OUT, GroupTimesRow


def move_clock(from_ms: int, to: datetime | str | timedelta, what: str) -> int:
    """Return the instant that a clock is moved to, in ms. Raises InvalidInputError."""
    if isinstance(to, datetime):
        if to.tzinfo is None:
            raise InvalidInputError(f"{what} cannot be moved to {to!r}, which has no time zone.")
        moved = (to - EPOCH) // timedelta(milliseconds=1)
    else:
        moved = from_ms + milliseconds(to)
    if moved < from_ms:
        at = EPOCH + timedelta(milliseconds=from_ms)
        raise InvalidInputError(f"{what} is {at}, and cannot go back to {EPOCH + timedelta(milliseconds=moved)}.")
    return moved


def is_due(group: GroupTimesRow | None, operator: KeyedOperator, clocks: Clocks) -> bool:
    """Return whether Spark calls a group without rows."""
    if group is None or group.time_out_ms == NO_TIME_OUT or operator.time_out_clock is None:
        return False
    if operator.time_out_clock == "event":
        return group.time_out_ms < clocks.watermark_ms
    # One that is asked for at the next trigger is called then, because Spark's clock always goes on.
    return group.time_out_ms <= max(group.processing_ms + 1, clocks.processing_ms - 1)
