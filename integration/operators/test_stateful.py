"""Programs written for transformWithState come to the same on keyed state as on Spark's own operator and store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from integration.operators import inputs
from integration.operators.providers import OURS, ROCKSDB
from integration.operators.replay import Case, collect_into, run, write_inputs
from integration.operators.sources import Source
from tests.operators.stateful_model import Model
from tests.operators.stateful_program import (
    COLUMNS,
    MINUTE_MS,
    OUTPUT,
    START_MS,
    Commands,
    Echo,
    Mixed,
    Watcher,
    group_rows,
    make_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    from integration.operators.providers import Provider
    from integration.operators.replay import Lines, Query

FORMS = (False, True)
_ZONE = "America/New_York"
"""The time zone of the sessions, in which rows and frames have their instants."""
_KINDS = inputs.kinds(seed=67)


def _without_nulls(source: Source) -> Source:
    """The same without nulls where they make a whole number a float, in the frames of all keys of a batch."""
    instead = (True, 7, 7, 7, 7)  # of a boolean and of integers

    def fill(row: tuple[Any, ...]) -> tuple[Any, ...]:
        first = [other if value is None else value for value, other in zip(row, instead, strict=False)]
        return (*first, *row[len(instead) :])

    return Source(source.schema, tuple(tuple(map(fill, rows)) for rows in source.batches))


_KINDS_OF_FRAMES = _without_nulls(_KINDS)


def _make_query(
    program: StatefulProcessor,
    output: str,
    time_mode: str,
    *,
    is_ours: bool,
    of_frames: bool,
    by: str = "user",
    initial: Callable[[SparkSession], DataFrame] | None = None,
    event_time: str = "",
    mode: str = "Update",
) -> Query:
    """A query with a keyed operator, or with Spark's own one. ``initial`` makes its initial state."""

    def query(frames: Any) -> DataFrame:  # noqa: ANN401
        state: Any = None if initial is None else initial(frames[0].sparkSession)
        call: Any
        if is_ours:
            keyed = ckpt.keyed(frames[0], by, uid="it")
            call = keyed.transform_with_state_in_pandas if of_frames else keyed.transform_with_state
        else:
            grouped = frames[0].groupBy(by)
            call = grouped.transformWithStateInPandas if of_frames else grouped.transformWithState
            state = None if state is None else state.groupBy(by)
        frame: DataFrame = call(program, output, mode, time_mode, state, event_time)
        return frame

    return query


ours = partial(_make_query, is_ours=True)
spark_s = partial(_make_query, is_ours=False)


def watched(query: Query) -> Query:
    """The query over a frame with a watermark."""
    return lambda frames: query([frames[0].withWatermark("at", "1 minute")])


def play(
    spark: SparkSession,
    query: Query,
    source: Source,
    provider: Provider,
    folder: Path,
    collect: Callable[[dict[int, Any]], Callable[[DataFrame, int], None]] = collect_into,
    mode: str = "update",
) -> Mapping[int, Any]:
    """The rows of every batch, with a restart in the middle."""
    case, batches = Case(query, (source,), output_mode=mode), dict[int, Any]()
    middle = len(source.batches) // 2
    for first, last in ((0, middle), (middle, len(source.batches))):
        write_inputs(case, folder, first, last)
        run(provider.session(spark, **{"spark.sql.session.timeZone": _ZONE}), case, folder, collect(batches))
    return batches


def play_both(
    spark: SparkSession,
    queries: Sequence[Query],
    source: Source,
    folder: Path,
    collect: Callable[[dict[int, Any]], Callable[[DataFrame, int], None]] = collect_into,
    mode: str = "update",
) -> tuple[Mapping[int, Any], Mapping[int, Any]]:
    """What Spark's own operator and the keyed one return, both at once."""
    with ThreadPoolExecutor(2) as pool:
        running = [
            pool.submit(play, spark, query, source, provider, folder / provider.name, collect, mode)
            for query, provider in zip(queries, (ROCKSDB, OURS), strict=True)
        ]
        expected, actual = (each.result() for each in running)
        return expected, actual


def compare(
    spark: SparkSession,
    folder: Path,
    program: StatefulProcessor,
    output: str,
    source: Source,
    *,
    of_frames: bool,
    by: str = "user",
) -> Mapping[int, Lines]:
    """Run a program without timers on both; fail where they differ."""
    queries = (
        spark_s(program, output, "None", of_frames=of_frames, by=by),
        ours(program, output, "none", of_frames=of_frames, by=by),
    )
    expected, actual = play_both(spark, queries, source, folder)
    assert any(expected.values())
    for batch, rows in expected.items():
        assert actual.get(batch) == rows
    assert actual == expected
    return actual


def _make_initial(spark: SparkSession) -> DataFrame:
    """An initial state: several rows for some users, and users that have no other rows."""
    users = [(user, user * n, "ab"[n % 2]) for user in (0, 1, 2, 77) for n in range(user % 3 + 1)]
    return spark.createDataFrame(users, "user int, first int, word string")


def _collect_told(batches: dict[int, list[str]]) -> Callable[[DataFrame, int], None]:
    """A ``foreachBatch`` function that keeps what a Commands has told."""

    def collect(frame: DataFrame, batch_id: int) -> None:
        batches[batch_id] = sorted(row.told for row in frame.collect())

    return collect


def _without_clock(rows: list[str]) -> list[str]:
    return sorted(row.partition("|")[2] for row in rows)


@pytest.mark.in_turn
@pytest.mark.parametrize("of_frames", FORMS)
def test_states_and_timers_of_event_time_are_those_of_spark(
    of_frames: bool,  # noqa: FBT001
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    program = Commands(of_frames=of_frames, base_ms=START_MS, unit_ms=MINUTE_MS)
    source = Source(COLUMNS, make_rows(seed=5 + of_frames, batches=6))
    queries = (
        spark_s(program, OUTPUT, "EventTime", of_frames=of_frames, initial=_make_initial),
        ours(program, OUTPUT, "eventtime", of_frames=of_frames, initial=_make_initial),
    )
    expected, actual = play_both(spark, tuple(map(watched, queries)), source, tmp_path, _collect_told)
    fired = [row for rows in expected.values() for row in rows if "|timer" in row]
    assert len(fired) > 10
    for batch, rows in expected.items():
        assert _without_clock(actual[batch]) == _without_clock(rows)
    assert set(actual) == set(expected)


@pytest.mark.in_turn
@pytest.mark.parametrize("of_frames", FORMS)
def test_times_to_live_and_timers_of_processing_time_are_those_of_spark(
    of_frames: bool,  # noqa: FBT001
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Batches begin when they begin: each store must do what the model says for its own times."""
    program = Commands(of_frames=of_frames, base_ms=None, unit_ms=500, ttl_ms=1500)
    source = Source(COLUMNS, make_rows(seed=7 + of_frames, batches=5))
    for query, provider in (
        (spark_s(program, OUTPUT, "ProcessingTime", of_frames=of_frames), ROCKSDB),
        (ours(program, OUTPUT, "processingTime", of_frames=of_frames), OURS),
    ):
        folder, batches = tmp_path / provider.name, dict[int, list[str]]()
        case = Case(query, (source,), output_mode="update", one_batch_a_run=True)
        for number in range(len(source.batches)):
            write_inputs(case, folder, number, number + 1)
            run(provider.session(spark), case, folder, _collect_told(batches))
        model = Model(Commands(of_frames=False, base_ms=None, unit_ms=500, ttl_ms=1500), "processingtime")
        fired = 0
        for number, rows in enumerate(source.batches):
            now_ms, watermark_ms = map(int, batches[number][0].split("|")[:2])
            expected = sorted(row.told for row in model.run(group_rows(rows), now_ms, watermark_ms))
            assert [f"{provider.name} {row}" for row in batches[number]] == [
                f"{provider.name} {row}" for row in expected
            ]
            fired += sum("|timer" in row for row in expected)
        assert fired > 2


@pytest.mark.parametrize("of_frames", FORMS)
def test_rows_and_keys_of_every_type_are_those_of_spark(
    of_frames: bool,  # noqa: FBT001
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    source = _KINDS_OF_FRAMES if of_frames else _KINDS
    compare(spark, tmp_path, Watcher(of_frames=of_frames), OUTPUT, source, of_frames=of_frames, by="c_long")


@pytest.mark.in_turn
@pytest.mark.parametrize("of_frames", FORMS)
def test_output_of_every_type_is_that_of_spark(
    of_frames: bool,  # noqa: FBT001
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    source = _KINDS_OF_FRAMES if of_frames else _KINDS
    compare(spark, tmp_path, Echo(), source.schema, source, of_frames=of_frames, by="c_long")


def test_states_of_many_types_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    compare(spark, tmp_path, Mixed(), OUTPUT, inputs.events(seed=71), of_frames=False)
    stored = ckpt.reading.open_state(tmp_path / OURS.name / "checkpoint", uid="it", state="map").to_pandas()
    assert {entry["s"] for entry in stored["map_key"]} == {"k0", "k1", None}


def test_the_event_time_of_the_output_is_that_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Windows over the output close when they close in Spark."""
    source = inputs.events(seed=73)

    def windows(query: Query) -> Query:
        def of_output(frames: Any) -> DataFrame:  # noqa: ANN401
            return query(frames).groupBy(f.window("at", "5 minutes")).agg(f.count("*"), f.sum("id"))

        return watched(of_output)

    queries = [
        windows(make(Echo(), source.schema, "EventTime", of_frames=False, event_time="at", mode="Append"))
        for make in (spark_s, ours)
    ]
    expected, actual = play_both(spark, queries, source, tmp_path, mode="append")
    assert sum(map(len, expected.values())) > 5
    assert actual == expected
