"""The queries that are killed: four stateful operators over small files, one file a micro-batch.

Everything is deterministic: the same files give the same batches, the same output and the same state, whatever
died in between. Batches without data are off, for Spark does not run the last of them again after a restart.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

BATCHES = 6
ROWS = 40
QUERIES = ("windows", "dedup", "join", "groups")
SETTINGS = {
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.stateStore.ckpt.snapshotEveryVersions": "2",
    "spark.sql.streaming.stateStore.ckpt.retentionGracePeriod": "0",
}
JOIN_SIDES = ("left", "right")

_COLUMNS = "user int, number long, at timestamp"
_FILES = pa.schema([("user", pa.int32()), ("number", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
_FILE_TIME_S = 1_700_000_000
_START = datetime(2024, 3, 1, 12, 0, tzinfo=timezone.utc)
_GROUPS_OUT = "user int, events long, total long, timed_out boolean"
_GROUPS_STATE = "events long, total long"


@dataclass(frozen=True)
class Fault:
    """What user code does wrong, once: in the first task that gets to ``batch`` and finds no ``marker`` file.

    ``kind`` is ``raise_midway`` (before the operator has committed), ``raise_at_end`` (after it has),
    ``kill_worker`` (SIGKILL of the own Python process) or ``sleep`` (wait until a file ``<marker>.go`` appears).
    """

    kind: str
    marker: str
    batch: int = 2

    def strike(self, where: str) -> None:
        """Do it, if this is the place and the time."""
        if (where == "end") == (self.kind == "raise_at_end") and self._is_due() and self._is_first():
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
        elif self.kind == "sleep":
            while not Path(f"{self.marker}.go").exists():
                time.sleep(0.05)
        else:
            raise RuntimeError(f"made-up failure: {self.kind}")


def write_inputs(folder: Path, first: int = 0, last: int = BATCHES) -> None:
    """Write the files of batches ``first`` to ``last - 1`` of both sources."""
    for side, seed in zip(JOIN_SIDES, (21, 22), strict=True):
        (folder / side).mkdir(parents=True, exist_ok=True)
        for batch, rows in list(enumerate(_events(seed)))[first:last]:
            columns = [
                pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _FILES, strict=True)
            ]
            path = folder / side / f".{batch:04d}.staged"
            pq.write_table(pa.Table.from_arrays(columns, schema=_FILES), path)
            os.utime(path, (_FILE_TIME_S + batch, _FILE_TIME_S + batch))  # Spark reads the oldest first
            path.rename(folder / side / f"{batch:04d}.parquet")


def build(spark: SparkSession, name: str, inputs: Path, fault: Fault | None = None, weight: int = 1) -> DataFrame:
    """The query ``name``; ``weight`` is what a fixed program changes about it."""
    left, right = (
        spark.readStream.schema(_COLUMNS)
        .option("maxFilesPerTrigger", "1")
        .parquet(str(inputs / side))
        .withWatermark("at", "15 minutes")
        for side in JOIN_SIDES
    )
    return _BUILDERS[name](left, right, fault, weight)


def output_mode(name: str) -> str:
    """The output mode of a query."""
    return "update" if name in ("windows", "groups") else "append"


def state_views(name: str) -> tuple[Mapping[str, str], ...]:
    """Options of Spark's ``statestore`` source that together show all state of a query."""
    return tuple({"joinSide": side} for side in JOIN_SIDES) if name == "join" else ({},)


def _events(seed: int) -> list[list[tuple[Any, ...]]]:
    random = Random(seed)
    return [[_event(random, batch) for _ in range(ROWS)] for batch in range(BATCHES)]


def _event(random: Random, batch: int) -> tuple[Any, ...]:
    late = random.choice((0, 0, 0, 5, 12))
    at = _START + timedelta(minutes=10 * batch - late, seconds=30 * random.randrange(20))
    return random.choice((1, 2, 3, 4, 5, 6, 7, 8, None)), random.randrange(1000), at


def _windows(left: DataFrame, _right: DataFrame, fault: Fault | None, weight: int) -> DataFrame:
    counted = left.groupBy(f.window("at", "10 minutes"), "user").agg(
        f.count("*").alias("events"), f.sum(f.col("number") * weight).alias("total")
    )
    return _with(fault, counted.selectExpr("window.start", "user", "events", "total"))


def _dedup(left: DataFrame, _right: DataFrame, fault: Fault | None, weight: int) -> DataFrame:
    first = left.select("user", "at").dropDuplicates(["user", "at"])
    return _with(fault, first.selectExpr("user", "at", f"{weight} as weight"))


def _join(left: DataFrame, right: DataFrame, fault: Fault | None, weight: int) -> DataFrame:
    near = f.expr("l.user = r.user and l.at between r.at - interval 3 minutes and r.at + interval 3 minutes")
    joined = left.alias("l").join(right.alias("r"), near, "leftOuter")
    columns = ("l.user", "l.number", "l.at", "r.number as other", "r.at as other_at", f"{weight} as weight")
    return _with(fault, joined.selectExpr(*columns))


def _groups(left: DataFrame, _right: DataFrame, fault: Fault | None, weight: int) -> DataFrame:
    def totals(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        if fault is not None:
            fault.strike("midway")
        events, total = state.get if state.exists else (0, 0)
        if state.hasTimedOut:
            state.remove()
        else:
            for frame in frames:
                events += len(frame)
                total += int(frame["number"].sum()) * weight
            state.update((events, total))
            state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 60_000)
        yield pd.DataFrame({"user": [key[0]], "events": [events], "total": [total], "timed_out": [state.hasTimedOut]})

    # Rare users go silent, so that some time out.
    rare = f.when(f.col("number") % 9 == 0, f.col("user") * 100 + f.col("number") % 5).otherwise(f.col("user"))
    return (
        left.withColumn("user", rare.cast("int"))
        .groupBy("user")
        .applyInPandasWithState(totals, _GROUPS_OUT, _GROUPS_STATE, "update", GroupStateTimeout.EventTimeTimeout)
    )


def _with(fault: Fault | None, frame: DataFrame) -> DataFrame:
    if fault is None:
        return frame

    def through(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for each in frames:
            fault.strike("midway")
            yield each
        fault.strike("end")

    return frame.mapInPandas(through, frame.schema)


_BUILDERS: Mapping[str, Callable[[DataFrame, DataFrame, Fault | None, int], DataFrame]] = {
    "windows": _windows,
    "dedup": _dedup,
    "join": _join,
    "groups": _groups,
}
