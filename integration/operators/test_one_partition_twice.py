"""A task that has one partition of an operator twice, as a foreachBatch function makes one of its frame and itself."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators import inputs
from integration.operators.keyed import TOTALS, Totals, keyed
from integration.operators.placement import stored_rows
from integration.operators.providers import OURS
from integration.operators.replay import Case, lines, run, write_inputs
from integration.operators.test_group_states import Pauses, pause
from integration.operators.test_timers import ReminderColumns, Reminders, watched
from integration.sample import sampled
from integration.short import has

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from integration.operators.placement import StoredRow
    from integration.operators.replay import Lines

    Twice = Callable[[DataFrame], DataFrame]
    Played = tuple[Mapping[int, Lines], list[StoredRow]]

_SETTINGS = {SHUFFLE_PARTITIONS: "1", "spark.sql.autoBroadcastJoinThreshold": "-1"}
_EVENTS = (inputs.events(seed=41),)
_SIDES = (inputs.one_side(seed=42), inputs.one_side(seed=43))


def _aggregated(frames: Sequence[DataFrame]) -> DataFrame:
    return frames[0].groupBy("user").agg(f.count("*").alias("rows"), f.collect_list("id").alias("ids"))


def _joined(frames: Sequence[DataFrame]) -> DataFrame:
    left, right = (frame.withWatermark("at", "5 minutes") for frame in frames)
    near = f.expr("l.key = r.key and l.at between r.at - interval 4 minutes and r.at + interval 6 minutes")
    return left.alias("l").join(right.alias("r"), near, "leftOuter").selectExpr("l.number", "r.number AS other")


def _sessions(frames: Sequence[DataFrame]) -> DataFrame:
    timely = frames[0].withWatermark("at", "10 minutes")
    return timely.groupBy(f.session_window("at", "2 minutes"), "user").agg(f.count("*").alias("rows"))


def _unchanged(frames: Sequence[DataFrame]) -> DataFrame:
    stream = ckpt.keyed(frames[0], "user", uid="it")
    return stream.apply_in_pandas_with_state(_count, TOTALS, "rows bigint, total bigint", "update", "NoTimeout")


def _count(key: tuple[Any, ...], frames: Any, state: Any) -> Any:  # noqa: ANN401
    import pandas as pd

    rows, total = state.get if state.exists else (0, 0)
    for frame in frames:
        rows, total = rows + len(frame), total + int(frame["id"].sum())
    state.update((rows, total))
    yield pd.DataFrame({"user": [key[0]], "rows": [rows], "total": [total]})


def _with_states(frames: Sequence[DataFrame]) -> DataFrame:
    called = ckpt.with_states(pause, Pauses(), uid="it")
    arguments = ("user int, ends bigint, seen string", "n int", "update", "EventTimeTimeout")
    return frames[0].withWatermark("at", "1 minute").groupBy("user").applyInPandasWithState(called, *arguments)


def _processor(frames: Sequence[DataFrame]) -> DataFrame:
    from integration.operators.processors import Total

    rows = frames[0].selectExpr("coalesce(word, '') AS k", "id AS value")
    return rows.groupBy("k").transformWithState(
        statefulProcessor=Total(),
        outputStructType="k string, total bigint, batch bigint",
        outputMode="Update",
        timeMode="None",
    )


_CASES: Mapping[str, Case] = {
    "aggregation": Case(_aggregated, _EVENTS, "update"),
    "deduplication": Case(lambda frames: frames[0].dropDuplicates(["user", "word"]), _EVENTS),
    "join": Case(_joined, _SIDES),
    "session windows": Case(_sessions, _EVENTS),
    "process": Case(watched(Reminders()), _EVENTS, "update"),
    "process_batch": Case(watched(ReminderColumns()), _EVENTS, "update"),
    "totals": Case(keyed(Totals(), TOTALS), _EVENTS, "update"),
    "apply_in_pandas_with_state": Case(_unchanged, _EVENTS, "update"),
    "with_states": Case(_with_states, _EVENTS, "update"),
    **({"processor": Case(_processor, _EVENTS, "update")} if has("4.1") else {}),
}


def _once(frame: DataFrame) -> DataFrame:
    return frame


def _union(frame: DataFrame) -> DataFrame:
    """One after the other."""
    return _without_exchange(frame.union(frame).coalesce(1))


def _join(frame: DataFrame) -> DataFrame:
    """The same, by a join."""
    left, right = (
        frame.coalesce(1).select(f.xxhash64(f.struct("*").cast("string")).alias("hash"), f.struct("*").alias(name))
        for name in ("l", "r")
    )
    joined = left.hint("merge").join(right, "hash")
    return _without_exchange(joined.select(f.explode(f.array("l", "r")).alias("row")).select("row.*"))


def _zip(frame: DataFrame) -> DataFrame:
    """By turns."""
    pairs = frame.rdd.zip(frame.rdd)
    return frame.sparkSession.createDataFrame(pairs.flatMap(lambda pair: pair), frame.schema, verifySchema=False)


def _without_exchange(frame: DataFrame) -> DataFrame:
    assert "Exchange" not in frame._jdf.queryExecution().executedPlan().toString(), "it takes several tasks"
    return frame


_WAYS: Mapping[str, Twice] = {
    "union": _union,
    "join": _join,
    "zip": _zip,
    "persist and zip": lambda frame: _zip(frame.persist()),
}
_IN_WORKERS = ("process", "process_batch", "totals", "apply_in_pandas_with_state", "with_states")
_FORMATS = [1, 2] if has("4.1") else [1]


def _play(spark: SparkSession, case: Case, folder: Path, version: int, twice: Twice) -> Played:
    """The rows of every batch of two runs, and the state then."""
    batches: dict[int, Lines] = {}

    def collect(frame: DataFrame, batch: int) -> None:
        batches[batch] = lines(twice(frame))

    for first, last in ((0, 2), (2, 4)):
        write_inputs(case, folder, first, last)
        run(OURS.in_format(version).session(spark, **_SETTINGS), case, folder, collect)
    return batches, sorted(stored_rows(folder / "checkpoint"))


@pytest.fixture(scope="module")
def plain(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Played]:
    """What an operator does if each task has a partition once."""
    known: dict[str, Played] = {}

    def played(name: str) -> Played:
        if name not in known:
            known[name] = _play(spark, _CASES[name], tmp_path_factory.mktemp("plain"), _FORMATS[-1], _once)
        return known[name]

    return played


_EVERY = [each for each in product(_CASES, _WAYS, _FORMATS) if each[0] not in _IN_WORKERS or each[1] != "zip"]
_TAKEN = {
    "aggregation": "zip",
    "deduplication": "join",
    "join": "zip",
    "process": "union",
    "totals": "join",
    "with_states": "persist and zip",
}
_LEFT_OUT = [each for each in _EVERY if _TAKEN.get(each[0]) != each[1] or each[2] != _FORMATS[-1]]


@pytest.mark.in_turn
@pytest.mark.parametrize("case", sampled(_EVERY, _LEFT_OUT), ids=lambda case: "-".join(map(str, case)))
def test_rows_and_state_are_the_same_when_a_task_has_a_partition_twice(
    case: tuple[str, str, int], plain: Callable[[str], Played], spark: SparkSession, tmp_path: Path
) -> None:
    name, way, version = case
    expected, expected_rows = plain(name)
    assert any(expected.values()), "a case without output proves nothing"
    found, rows = _play(spark, _CASES[name], tmp_path, version, _WAYS[way])
    assert found == {number: tuple(sorted(2 * batch)) for number, batch in expected.items()}
    assert rows == expected_rows


@pytest.mark.parametrize("version", sampled(_FORMATS, _FORMATS[:-1]))
@pytest.mark.parametrize("name", sampled(_IN_WORKERS, set(_IN_WORKERS) - {"totals", "with_states"}))
def test_a_task_is_refused_that_takes_rows_of_a_partition_twice_by_turns(
    name: str, version: int, plain: Callable[[str], Played], spark: SparkSession, tmp_path: Path
) -> None:
    session = OURS.in_format(version).session(spark, **_SETTINGS)
    write_inputs(_CASES[name], tmp_path, 0, 2)
    with pytest.raises(StreamingQueryException, match=r"One task takes rows of partition 0 of .* twice") as failed:
        run(session, _CASES[name], tmp_path, lambda frame, _: print(_zip(frame).collect()))
    assert "Call persist() on the frame" in str(failed.value)
    assert _play(spark, _CASES[name], tmp_path, version, _once) == plain(name)
