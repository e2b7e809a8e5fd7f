"""Programs for Spark's own calls, and a chain of event time, for the program in a Spark Connect client."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pyspark_ckpt as ckpt
from integration.short import has

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

COLUMNS = "k int, n bigint"
TIMED = "at timestamp, k int, n bigint"


class Visits(StatefulProcessor):
    """Adds up the rows of a key, from its initial state on."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "n bigint")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:  # noqa: ANN401, ARG002, N802, N803
        self.total.update((initialState.n,))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: ANN401, ARG002, N802, N803
        yield Row(k=key[0], n=self._add(sum(1 for _ in rows)))

    def close(self) -> None:
        """Nothing is open."""

    def _add(self, rows: int) -> int:
        (before,) = self.total.get() or (0,)
        self.total.update((before + rows,))
        return int(before) + rows


class VisitsOfFrames(Visits):
    """The same with frames of pandas."""

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:  # noqa: ANN401, ARG002, N802, N803
        self.total.update((int(initialState["n"].iloc[0]),))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: ANN401, ARG002, N802, N803
        yield pd.DataFrame({"k": [key[0]], "n": [self._add(sum(map(len, rows)))]})


class States:
    """The states of a function that Spark calls."""

    total = ckpt.ValueState("total", "bigint", default=0)


def add_up(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], _state: GroupState, states: States
) -> Iterator[pd.DataFrame]:
    """The same in applyInPandasWithState."""
    states.total.update(states.total.value() + sum(map(len, frames)))
    yield pd.DataFrame({"k": [key[0]], "n": [states.total.value()]})


class Later(ckpt.KeyedProcessor):
    """Outputs the number of a row a second later."""

    numbers = ckpt.MapState("numbers", "timestamp", "bigint")
    due = ckpt.Timers("due", clock="event")

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> None:  # noqa: ANN401
        for row in rows:
            self.numbers.put(row.at + timedelta(seconds=1), row.n)
            self.due.register(row.at + timedelta(seconds=1))

    def on_timer(self, _ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        yield timer.at, key.k, self.numbers.get(timer.at)


def make_queries(spark: SparkSession, rows: DataFrame) -> Mapping[str, DataFrame]:
    """Return frames with COLUMNS, by name: those that the installed Spark has. ``rows``: a stream with TIMED."""
    initial = spark.sql("SELECT 1 AS k, 100L AS n")
    program = COLUMNS, "Append", "None"
    chain = rows.withWatermark("at", "0 seconds")
    for uid in ("first", "second"):
        chain = ckpt.keyed(chain, "k", uid=uid).process(Later(), TIMED, "append", event_time="at")
    busy, silent = (
        ckpt.with_watermark(each, "at", "0 seconds", idle_after="1 ms") for each in (rows, rows.filter("k < 0"))
    )
    called = ckpt.with_states(add_up, States(), uid="it")
    keyed = ckpt.keyed(rows, "k", uid="it")
    windows = {
        name: frame.groupBy(f.window("at", "10 seconds"), "k").agg(f.sum("n").alias("n")).select("k", "n")
        for name, frame in (("chain", chain), ("idle", busy.union(silent)))
    }
    found = {
        **windows,
        "with_states": rows.groupBy("k").applyInPandasWithState(called, COLUMNS, "none int", "append", "NoTimeout"),
        "frames": keyed.transform_with_state_in_pandas(VisitsOfFrames(), *program, initial_state=initial),
    }
    if has("4.1"):
        found["rows"] = keyed.transform_with_state(Visits(), *program, initial_state=initial)
        found["spark"] = rows.groupBy("k").transformWithStateInPandas(
            VisitsOfFrames(), *program, initialState=initial.groupBy("k")
        )
    return found
