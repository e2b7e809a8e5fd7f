"""The queries that are killed: six stateful operators over made-up events.

Everything is deterministic: a batch of one number has the same rows, output and state, whatever died in between.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import pyspark_ckpt as ckpt
from integration.short import has

BATCHES = 6
ROWS = 60
QUERIES = ("windows", "dedup", "join", "groups", "keyed", *(("processor",) if has("4.1") else ()))
SETTINGS = {
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.stateStore.ckpt.snapshotEveryVersions": "2",
    "spark.sql.streaming.stateStore.ckpt.retentionGracePeriod": "0",
}
JOIN_SIDES = ("left", "right")
GIVEN = 12
"""So many users are in the initial state of the keyed query; eight of them have rows."""

_QUIET = timedelta(minutes=9)
_START_S = 1_709_294_400  # 2024-03-01 12:00 UTC
_GROUPS_OUT = "user int, events long, total long, timed_out boolean, recent array<long>, ends long"
_GROUPS_STATE = "events long, total long"


@dataclass(frozen=True)
class Fault:
    """What user code does wrong, once: in the first task that gets to ``batch`` and finds no ``marker`` file.

    ``kind`` is ``raise_midway`` (before the operator has committed), ``raise_at_end`` (after it has),
    ``kill_worker`` (SIGKILL of the own Python process) or ``sleep`` (wait until a file ``<marker>.go`` appears). With
    ``hold``, all tasks from that batch on wait for the file, so none of them commits.
    """

    kind: str
    marker: str
    batch: int = 2

    def strike(self, where: str) -> None:
        """Do it, if this is the place and the time."""
        is_here = (where == "end") == (self.kind == "raise_at_end")
        if is_here and self._is_due() and (self._is_first() or self.kind == "hold"):
            self._act()

    def _is_due(self) -> bool:
        context = TaskContext.get()
        return context is not None and int(context.getLocalProperty("streaming.sql.batchId") or -1) >= self.batch

    def _is_first(self) -> bool:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _act(self) -> None:
        if self.kind == "kill_worker":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind in ("sleep", "hold"):
            while not Path(f"{self.marker}.go").exists():
                time.sleep(0.05)
        else:
            raise RuntimeError(f"made-up failure: {self.kind}")


def build(spark: SparkSession, name: str, fault: Fault | None = None, weight: int = 1) -> DataFrame:
    """The query ``name``; ``weight`` is what a fixed program changes about it."""
    return _BUILDERS[name](_events(spark), fault, weight)


def output_mode(name: str) -> str:
    """The output mode of a query."""
    return "update" if name in ("windows", "groups", "keyed") else "append"


def state_views(name: str) -> tuple[Mapping[str, str], ...]:
    """Options of Spark's ``statestore`` source that together show all state of a query."""
    if name == "join":
        return tuple({"joinSide": side} for side in JOIN_SIDES)
    if name == "processor":
        states = tuple({"stateVarName": each} for each in ("total", "ids", "words"))
        return (*states, {"readRegisteredTimers": "true"})
    return ({},)


def _events(spark: SparkSession) -> DataFrame:
    """Made-up events in time order, ten minutes a batch; some are late, and users repeat.

    Not files: after a crash between its own log and the offset log, Spark's file source makes a larger batch.
    """
    rows = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=ROWS, numPartitions=1, startTimestamp=0, advanceMillisPerBatch=1000)
        .load()
    )

    def drawn(seed: int, size: int) -> Column:
        return f.pmod(f.hash("value", f.lit(seed)), f.lit(size))

    late_s = f.when(drawn(1, 5) == 0, 720).when(drawn(1, 5) == 1, 300).otherwise(0)
    at_s = _START_S + f.floor(f.col("value") / ROWS) * 600 + drawn(2, 20) * 30 - late_s
    return rows.select(
        f.nullif(drawn(3, 9), f.lit(8)).alias("user"),
        drawn(4, 1000).cast("long").alias("number"),
        f.timestamp_seconds(at_s).alias("at"),
        f.when(drawn(5, 2) == 0, JOIN_SIDES[0]).otherwise(JOIN_SIDES[1]).alias("side"),
    ).withWatermark("at", "15 minutes")


def _windows(events: DataFrame, fault: Fault | None, weight: int) -> DataFrame:
    counted = events.groupBy(f.window("at", "10 minutes"), "user").agg(
        f.count("*").alias("events"), f.sum(f.col("number") * weight).alias("total")
    )
    return _with(fault, counted.selectExpr("window.start", "user", "events", "total"))


def _dedup(events: DataFrame, fault: Fault | None, weight: int) -> DataFrame:
    first = events.select("user", "at").dropDuplicates(["user", "at"])
    return _with(fault, first.selectExpr("user", "at", f"{weight} as weight"))


def _join(events: DataFrame, fault: Fault | None, weight: int) -> DataFrame:
    left, right = (events.where(f.col("side") == side) for side in JOIN_SIDES)
    near = f.expr("l.user = r.user and l.at between r.at - interval 3 minutes and r.at + interval 3 minutes")
    joined = left.alias("l").join(right.alias("r"), near, "leftOuter")
    columns = ("l.user", "l.number", "l.at", "r.number as other", "r.at as other_at", f"{weight} as weight")
    return _with(fault, joined.selectExpr(*columns))


class _History:
    """States of ours beside Spark's own: the latest numbers, and how often the user has gone."""

    recent = ckpt.ListState("recent", "bigint", ttl=ckpt.Ttl("15 minutes", clock="event"))
    ends = ckpt.ValueState("ends", "bigint", default=0)


def _groups(events: DataFrame, fault: Fault | None, weight: int) -> DataFrame:
    def totals(
        key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState, history: _History
    ) -> Iterator[pd.DataFrame]:
        if fault is not None:
            fault.strike("midway")
        events, total = state.get if state.exists else (0, 0)
        if state.hasTimedOut:
            state.remove()
            history.ends.update(history.ends.value() + 1)
        else:
            for frame in frames:
                history.recent.add_all(frame["number"].tolist())
                events += len(frame)
                total += int(frame["number"].sum()) * weight
            state.update((events, total))
            state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 60_000)
        yield pd.DataFrame(
            {
                "user": [key[0]],
                "events": [events],
                "total": [total],
                "timed_out": [state.hasTimedOut],
                "recent": [list(history.recent.get())],
                "ends": [history.ends.value()],
            }
        )

    called = ckpt.with_states(totals, _History(), uid="history")
    # Rare users go silent, so that some time out.
    rare = f.when(f.col("number") % 9 == 0, f.col("user") * 100 + f.col("number") % 5).otherwise(f.col("user"))
    return (
        events.withColumn("user", rare.cast("int"))
        .groupBy("user")
        .applyInPandasWithState(called, _GROUPS_OUT, _GROUPS_STATE, "update", GroupStateTimeout.EventTimeTimeout)
    )


class _Activity(ckpt.KeyedProcessor):
    """A value, a list whose elements expire, a map and timers for each user."""

    total = ckpt.ValueState("total", "struct<events bigint, total bigint>")
    recent = ckpt.ListState("recent", "bigint", ttl=ckpt.Ttl("15 minutes", clock="event"))
    sides = ckpt.MapState("sides", "string", "bigint")
    quiet = ckpt.Timers("quiet", clock="event")

    def __init__(self, fault: Fault | None, weight: int) -> None:
        self.fault = fault
        self.weight = weight

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401
        """Count and sum the user's events, and remember the latest."""
        if self.fault is not None:
            self.fault.strike("midway")
        events, total = self.total.value() or (0, 0)
        for row in rows:
            self.recent.add(row.number)
            self.quiet.register(row.at + _QUIET, row.side)
            if row.number % 5 == 0:
                self.quiet.delete(row.at + _QUIET, row.side)
            self.sides.put(row.side, self.sides.get(row.side, 0) + 1)
            total += row.number * self.weight
        self.total.update((events + len(rows), total))
        yield key.user, events + len(rows), total, list(self.recent.get()), dict(self.sides.items()), ctx.watermark_ms

    def process_initial(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401
        """Count how often this is called for a user."""
        if self.fault is not None:
            self.fault.strike("midway")
        given = self.sides.get("given", 0) + len(rows)
        self.sides.put("given", given)
        yield key.user, None, None, None, {"given": given}, ctx.watermark_ms

    def on_timer(self, ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401
        """Forget an event of the side that the timer is for."""
        if self.fault is not None:
            self.fault.strike("midway")
        left = self.sides.get(timer.namespace) - 1
        self.sides.put(timer.namespace, left)
        yield key.user, None, timer.at_ms, None, {timer.namespace: left}, ctx.watermark_ms


def _keyed(events: DataFrame, fault: Fault | None, weight: int) -> DataFrame:
    output = "user int, events bigint, total bigint, recent array<bigint>, sides map<string, bigint>, watermark bigint"
    initial = events.sparkSession.range(GIVEN).selectExpr("cast(id as int) user")
    return ckpt.keyed(events, "user", uid="activity").process(_Activity(fault, weight), output, initial_state=initial)


def _processor(events: DataFrame, fault: Fault | None, weight: int) -> DataFrame:
    from integration.crash.visits import FailingVisits  # new in Spark 4.1
    from integration.operators.processors import OUT

    visits = events.select("user", f.col("number").alias("id"), f.col("side").alias("word"), "at")
    return visits.groupBy("user").transformWithState(FailingVisits(fault, weight), OUT, "Append", "EventTime")


def _with(fault: Fault | None, frame: DataFrame) -> DataFrame:
    if fault is None:
        return frame

    def through(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for each in frames:
            fault.strike("midway")
            yield each
        fault.strike("end")

    return frame.mapInPandas(through, frame.schema)


_BUILDERS: Mapping[str, Callable[[DataFrame, Fault | None, int], DataFrame]] = {
    "windows": _windows,
    "dedup": _dedup,
    "join": _join,
    "groups": _groups,
    "keyed": _keyed,
    "processor": _processor,
}
