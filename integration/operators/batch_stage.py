"""Queries whose foreachBatch function runs its action in some way, in a session of Spark's own or of Spark Connect."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from integration.operators.actions import collect, collect_at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

COLUMNS = "k string, total bigint, batch bigint"
AT_ONCE = "at once"
"""The way in which several actions run on one frame at the same time."""
ACTIONS = 3
WAIT_S = 240.0
SLOW_STARTS = ("worker failed to connect back", "CANNOT_OPEN_SOCKET", "SocketTimeoutException", "Accept timed out")
"""What a query ends with whose Python process needs more than ten seconds to start: a fixed limit of Spark."""
STARTS = 4


class Totals(ckpt.KeyedProcessor):
    """Adds up the values of a key, and tells the batch."""

    total = ckpt.ValueState("total", "bigint", default=0)

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401
        self.total.update(self.total.value() + sum(row.value for row in rows))
        yield key.k, self.total.value(), ctx.batch_id


class Uneven(Totals):
    """Writes the partition into a broadcast state, so that its copies differ."""

    rules = ckpt.BroadcastState("rules", "string", "bigint")

    def process_broadcast(self, ctx: ckpt.Context, rows: Sequence[Any]) -> None:
        for row in rows:
            self.rules.put(row.k, ctx.partition)


class _States:
    total = ckpt.ValueState("total", "bigint", default=0)


def _add(key: tuple[str], frames: Iterator[pd.DataFrame], _state: GroupState, states: Any) -> Iterator[pd.DataFrame]:  # noqa: ANN401
    import pandas as pd

    total = states.total.value() + sum(int(frame["value"].sum()) for frame in frames)
    states.total.update(total)
    yield pd.DataFrame({"k": [key[0]], "total": [total], "batch": [-1]})


def _aggregated(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(f.sum("value").alias("total"), f.lit(-1).cast("long").alias("batch"))


def _keyed(rows: DataFrame) -> DataFrame:
    return ckpt.keyed(rows, "k", uid="it").process(Totals(), COLUMNS, "append")


def _with_states(rows: DataFrame) -> DataFrame:
    function = ckpt.with_states(_add, _States(), uid="it")
    return rows.groupBy("k").applyInPandasWithState(function, COLUMNS, "n int", "append", "NoTimeout")


def _processor(rows: DataFrame) -> DataFrame:
    from integration.operators.processors import Total

    return rows.groupBy("k").transformWithState(
        statefulProcessor=Total(), outputStructType=COLUMNS, outputMode="Update", timeMode="None"
    )


QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "aggregation": _aggregated,
    "keyed": _keyed,
    "with_states": _with_states,
    "processor": _processor,
}


@dataclass(frozen=True)
class Stage:
    """A query in a folder, and how it runs."""

    spark: SparkSession
    folder: Path
    way: str
    query: str = "aggregation"
    conf: Mapping[str, str] = field(default_factory=dict)
    weight: int = 1
    """What a program that is wrong multiplies its rows with."""
    fails: bool = False
    """Whether the function fails after its action."""
    waits: bool = False
    """Whether the function waits, before its action, for the file ``go``; it makes the file ``held`` then."""
    reads: bool = False
    """Whether the function reads the state, too, in the session of its frame."""
    at: str = "checkpoint"
    broadcasts: bool = False

    @property
    def checkpoint(self) -> Path:
        """The checkpoint of the query."""
        return self.folder / self.at

    def put(self, *values: int) -> None:
        """Add a file for each value, which is a batch."""
        source = self.folder / "in"
        source.mkdir(parents=True, exist_ok=True)
        for number, value in enumerate(values, len(list(source.glob("*.json")))):
            written = source / f".{number}.json"
            written.write_text("".join(json.dumps({"k": k, "value": value}) + "\n" for k in "abcd"))
            os.utime(written, (1_700_000_000 + number, 1_700_000_000 + number))
            written.rename(source / f"{number}.json")

    def run(self) -> str:
        """Run all batches that there are; return how it has failed, or an empty text."""
        return self.run_and_see()[0]

    def run_and_see(self) -> tuple[str, Any]:
        """``run``, and return the last progress as well. If the machine was too slow to start, it is started again."""
        for _ in range(STARTS):
            try:
                query = self._start()
                query.awaitTermination()
            except Exception as problem:  # noqa: BLE001 - told to the test, which knows what it expects
                failure = f"{type(problem).__name__}: {problem}"
            else:
                return "", query.lastProgress
            if not any(each in failure for each in SLOW_STARTS):
                break
        return failure, None

    def _start(self) -> Any:  # noqa: ANN401 - a query of either API
        """Start it for all batches that there are."""
        for key, value in self.conf.items():
            self.spark.conf.set(key, value)
        read = self.spark.readStream.option("maxFilesPerTrigger", 1).schema("k string, value bigint")
        rows = read.json(str(self.folder / "in")).selectExpr("k", f"value * {self.weight}L AS value")
        if self.broadcasts:
            rules = read.json(str(self.folder / "in")).selectExpr("k")
            frame = ckpt.keyed(rows, "k", uid="it", broadcast=rules).process(Uneven(), COLUMNS, "append")
        else:
            frame = QUERIES[self.query](rows)
        writer = frame.writeStream.outputMode("append" if self.query == "with_states" else "update")
        act = make_function(self)
        query = writer.option("checkpointLocation", str(self.checkpoint)).foreachBatch(act)
        return query.trigger(availableNow=True).start()

    def totals(self) -> list[Any]:
        """The totals of the batches that have ended, which are the same for all keys; else all of a batch's rows."""
        found = []
        for path in sorted((self.folder / "out").glob("*.json"), key=lambda path: int(path.stem)):
            rows = json.loads(path.read_text())
            alike = {tuple(row[1:]) for row in rows}
            batch = int(path.stem)
            right = len(alike) == 1 and sorted(row[0] for row in rows) == list("abcd")
            found.append(rows[0][1] if right and rows[0][2] in (batch, -1) else rows)
        return found

    def stored(self, pattern: str) -> list[str]:
        """Names of files of the state, in either place."""
        roots = [self.checkpoint / "state", self.folder / "remote"]
        return sorted(str(path.relative_to(root)) for root in roots for path in root.rglob(pattern))


def make_function(stage: Stage) -> Callable[[DataFrame, int], None]:
    """Return a function that writes the rows of a batch into a file. A Connect server runs it in another process."""
    way, folder, checkpoint = stage.way, str(stage.folder), str(stage.checkpoint)
    fails, waits, reads = stage.fails, stage.waits, stage.reads

    def act(frame: DataFrame, batch: int) -> None:
        if waits:
            Path(folder, "held").touch()
            await_true(Path(folder, "go").exists)
        several = collect_at_once(frame, ACTIONS) if way == AT_ONCE else [collect(way, frame)]
        rows, *others = [sorted([row.k, row.total, row.batch] for row in each) for each in several]
        if any(other != rows for other in others):
            raise AssertionError(f"batch {batch}: actions differ: {rows}, {others}")
        if reads and batch > 0:
            state = frame.sparkSession.read.format("statestore").load(checkpoint)
            if len(collect(way, state)) != len(rows):
                raise AssertionError(f"batch {batch}: the reader has found other rows")
        if fails:
            raise RuntimeError("made-up failure of the function")
        out = Path(folder, "out")
        out.mkdir(exist_ok=True)
        (out / f"{batch}.json").write_text(json.dumps(rows))

    return act


def await_true(is_true: Callable[[], bool]) -> None:
    """Return when it is true."""
    deadline = time.monotonic() + WAIT_S
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not come")
        time.sleep(0.05)
