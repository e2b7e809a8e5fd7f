"""Several operators on groups in one task, where Spark needs no exchange between them: with one partition."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.actions import WAYS, collect
from integration.operators.providers import OURS
from integration.operators.replay import Case, collect_into, run, write_inputs
from integration.operators.sources import Source
from integration.savepoints.test_rescale import move
from integration.short import has
from pyspark_ckpt.state_store.options import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

    from integration.operators.replay import Lines

    Chain = Callable[[DataFrame], DataFrame]

COLUMNS = "at timestamp, user int, n bigint"
TOLD = "at timestamp, user int, told string"
_START = datetime(2024, 3, 1, tzinfo=timezone.utc)
_EVENTS = Source(
    COLUMNS,
    tuple(
        tuple((_START + timedelta(minutes=10 * batch, seconds=row - late), row % 5, row) for row in range(12))
        for batch, late in enumerate((0, 0, 900, 0, 0, 0))
    ),
)
"""In the third batch, many rows are late."""


class Ends(ckpt.KeyedProcessor):
    """Counts rows of a user, and outputs the count a minute after each batch of them, by a timer."""

    count = ckpt.ValueState("count", "bigint", default=0)
    due = ckpt.Timers("due", clock="event")

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> None:  # noqa: ANN401
        self.count.update(self.count.value() + len(rows))
        self.due.register(max(row.at for row in rows) + timedelta(minutes=1))

    def on_timer(self, _ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        yield timer.at, key.user, self.count.value()


class Late(ckpt.KeyedProcessor):
    """Passes rows on, and tells which of them are late."""

    seen = ckpt.MapState("seen", "bigint", "bigint")

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        for row in rows:
            self.seen.put(row.n, 1 + (self.seen.get(row.n) or 0))
            yield row.at, row.user, self.seen.get(row.n)

    def process_late(self, _ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        yield from ((row.at, row.user, -row.n) for row in rows)


class Columns(ckpt.VectorProcessor):
    """Counts rows of a user, for all keys at once."""

    count = ckpt.ValueState("count", "bigint")

    def process_batch(self, ctx: ckpt.VectorContext, batch: Any) -> Any:  # noqa: ANN401
        import numpy as np
        import pyarrow.compute as pc

        counted = pc.add(self.count.get(ctx.keys).fill_null(0), np.bincount(ctx.key_index, minlength=len(ctx.keys)))
        self.count.put(ctx.keys, counted)
        return batch.set_column(2, "n", counted.take(ctx.key_index))


class Calls:
    """How often a group was called."""

    count = ckpt.ValueState("count", "bigint", default=0)


def _called(
    key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState, calls: Calls | None = None
) -> Iterator[pd.DataFrame]:
    at = max(frame["at"].max() for frame in frames)
    n = (state.get[0] if state.exists else 0) + 1
    state.update((n,))
    if calls is not None:
        calls.count.update(calls.count.value() + 1)
        n += 100 * calls.count.value()
    yield pd.DataFrame({"at": [at], "user": [key[0]], "n": [n]})


def _grouped(frame: DataFrame, function: Any) -> DataFrame:  # noqa: ANN401
    grouped: DataFrame = frame.groupBy("user").applyInPandasWithState(
        function, COLUMNS, "calls bigint", "append", "NoTimeout"
    )
    return grouped


def _keyed(frame: DataFrame, processor: Any, uid: str) -> DataFrame:  # noqa: ANN401
    return ckpt.keyed(frame, "user", uid=uid).process(processor, COLUMNS, "append", event_time="at")


def _three(frame: DataFrame) -> DataFrame:
    return _keyed(_keyed(_keyed(frame, Late(), "first"), Columns(), "second"), Ends(), "third")


def _with_states(frame: DataFrame) -> DataFrame:
    return _grouped(_keyed(frame, Ends(), "first"), ckpt.with_states(_called, Calls(), uid="second"))


def _of_spark(frame: DataFrame) -> DataFrame:
    return _grouped(_keyed(frame, Ends(), "first"), _called)


def _unchanged(frame: DataFrame) -> DataFrame:
    stream = ckpt.keyed(_keyed(frame, Ends(), "first"), "user", uid="second")
    return stream.apply_in_pandas_with_state(_called, COLUMNS, "calls bigint", "append", "NoTimeout")


def _joined(frame: DataFrame) -> DataFrame:
    left, right = _keyed(frame, Ends(), "left"), _keyed(frame, Late(), "right").withColumnRenamed("n", "other")
    return left.join(right.withColumn("at", right["at"] + f.expr("interval 1 minute")), ["at", "user"])


def _connected(frame: DataFrame) -> DataFrame:
    ends = _keyed(frame, Ends(), "first")
    return _keyed(ends.union(frame), Late(), "second")


def _processor(frame: DataFrame) -> DataFrame:
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Counting(StatefulProcessor):
        """Counts rows of a user."""

        def init(self, handle: Any) -> None:  # noqa: ANN401
            self.count = handle.getValueState("count", "n bigint")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: ANN401, N802, N803, ARG002
            at = [row.at for row in rows]
            n = len(at) + (self.count.get() or (0,))[0]
            self.count.update((n,))
            yield Row(at=max(at), user=key[0], n=n)

    stream = ckpt.keyed(_keyed(frame, Ends(), "first"), "user", uid="second")
    return _keyed(
        stream.transform_with_state(Counting(), COLUMNS, "Append", "None", eventTimeColumnName="at"), Ends(), "third"
    )


_CHAINS: Mapping[str, Chain] = {
    "three": _three,
    "with_states": _with_states,
    "apply_in_pandas_with_state": _unchanged,
    "Spark's own": _of_spark,
    "a join": _joined,
    "a union": _connected,
    **({"transform_with_state": _processor} if has("4.1") else {}),
}


def _case(chain: Chain) -> Case:
    """With one input partition, which is all that an operator with one partition needs."""
    return Case(lambda frames: chain(frames[0].coalesce(1).withWatermark("at", "5 minutes")), (_EVENTS,))


def _play(spark: SparkSession, chain: Chain, folder: Path, numbers: Sequence[int]) -> Mapping[int, Lines]:
    """The rows of every batch of a query that has another number of partitions after each restart."""
    batches: dict[int, Lines] = {}
    for number, partitions in enumerate(numbers):
        write_inputs(_case(chain), folder, 3 * number, 3 * number + 3)
        if number and numbers[number - 1] != partitions:
            (folder / "checkpoint").rename(folder / "before")
            move(folder, "before", "checkpoint", partitions, None)
        session = OURS.session(spark, **{SHUFFLE_PARTITIONS: str(partitions)})
        run(session, _case(chain), folder, collect_into(batches))
    return batches


@pytest.mark.in_turn
@pytest.mark.parametrize("name", _CHAINS)
def test_a_chain_outputs_the_same_in_one_task_and_after_a_rescale_to_one_partition(
    name: str, spark: SparkSession, tmp_path: Path
) -> None:
    expected = _play(spark, _CHAINS[name], tmp_path / "two", (2, 2))
    assert any(expected.values()), "a case without output proves nothing"
    assert _play(spark, _CHAINS[name], tmp_path / "rescaled", (2, 1)) == expected
    assert _play(spark, _CHAINS[name], tmp_path / "one", (1, 2)) == expected


_TIME_OF_BATCH = re.compile(r"\b\d{13}\b")


def _tell(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """One row of what a worker has been told."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    told = [context.getLocalProperty(key) for key in ("ckpt.operators", f"{PREFIX}workerMemory")]
    for frame in frames:
        yield pd.DataFrame({"at": frame["at"][:1], "user": [0], "told": [str(told)]})


class _Passed(ckpt.KeyedProcessor):
    """Passes rows on."""

    count = ckpt.ValueState("count", "bigint", default=0)

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.count.update(self.count.value() + len(rows))
        yield from rows


def _pass_on(_key: Any, frames: Iterator[pd.DataFrame], _state: GroupState, calls: Calls) -> Iterator[pd.DataFrame]:  # noqa: ANN401
    calls.count.update(calls.count.value() + 1)
    yield from frames


@pytest.mark.parametrize("way", [way for way in WAYS if way != "inheritable" or has("4.0")])
def test_a_task_is_told_before_its_first_worker_begins(way: str, spark: SparkSession, tmp_path: Path) -> None:
    """Spark 3.5 sends a worker the properties of its task while later operators begin."""
    told: list[str] = []

    def each_batch(frame: DataFrame, _: int) -> None:
        told.extend(row.told for row in collect(way, frame))

    def query(frames: Sequence[DataFrame]) -> DataFrame:
        told = frames[0].coalesce(1).mapInPandas(_tell, TOLD)
        passed = ckpt.keyed(told, "user", uid="first").process(_Passed(), TOLD, "append")
        function = ckpt.with_states(_pass_on, Calls(), uid="second")
        last: DataFrame = passed.groupBy("user").applyInPandasWithState(
            function, TOLD, "calls bigint", "append", "NoTimeout"
        )
        return last

    case = Case(query, (_EVENTS,))
    write_inputs(case, tmp_path, 0, 2)
    session = OURS.session(spark, **{SHUFFLE_PARTITIONS: "1", f"{PREFIX}workerMemory": "96m"})
    run(session, case, tmp_path, each_batch)
    assert len(told) == 2
    assert len({_TIME_OF_BATCH.sub("now", each) for each in told}) == 1
    assert all(each in told[0] for each in ("keyed(uid='first')", "with_states(uid='second')", "96m"))
