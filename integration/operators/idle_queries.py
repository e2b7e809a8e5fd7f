"""Queries over two inputs that can be idle, with the columns ``k`` and ``at``: joins, windows, keyed timers."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

import pyspark_ckpt as ckpt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
IDLE_AFTER = "1 hour"


def idle(frame: DataFrame, after: str = IDLE_AFTER) -> DataFrame:
    return ckpt.with_watermark(frame, "at", "0 seconds", idle_after=after)


def counted(frame: DataFrame) -> DataFrame:
    windows = frame.groupBy(f.window("at", "10 minutes"), "k").count()
    return windows.select("k", f.date_format("window.start", "HH:mm"), "count")


def in_union(left: DataFrame, right: DataFrame, after: str = IDLE_AFTER) -> DataFrame:
    return counted(idle(left, after).union(idle(right, after)))


def in_outer_join(left: DataFrame, right: DataFrame, after: str = IDLE_AFTER) -> DataFrame:
    sides = idle(left, after).alias("l"), idle(right, after).alias("r")
    near = f.expr("l.k = r.k and l.at between r.at - interval 5 minutes and r.at + interval 5 minutes")
    return sides[0].join(sides[1], near, "leftOuter").select("l.k", f.date_format("l.at", "HH:mm"), "r.k")


class Overdue(ckpt.KeyedProcessor):
    """Outputs each row ten minutes later."""

    due = ckpt.Timers("due", clock="event")

    def process_left(self, _ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> None:  # noqa: ANN401
        for row in rows:
            self.due.register(row.at + timedelta(minutes=10))

    process_right = process_left

    def on_timer(self, _ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        yield key.k, f"{timer.at:%H:%M}", 1


def in_timers(left: DataFrame, right: DataFrame, after: str = IDLE_AFTER) -> DataFrame:
    sides = (ckpt.KeyedInput(idle(frame, after), "k") for frame in (left, right))
    return ckpt.keyed_inputs(uid="it", left=next(sides), right=next(sides)).process(
        Overdue(), "k string, due string, n int", "append"
    )


def in_deduplication(left: DataFrame, right: DataFrame) -> DataFrame:
    rows = idle(left).union(idle(right)).dropDuplicatesWithinWatermark(["k"])
    return rows.select("k", f.date_format("at", "HH:mm"), f.lit(1))
