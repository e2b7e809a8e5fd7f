"""transformWithState, on this store and on Spark's own: the same rows, batch by batch, and the same state."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import pyspark_ckpt as ckpt
from integration.operators import inputs
from integration.operators.processors import OUT, Durable, Evolving, Forgetful, Frames, Visits
from integration.operators.providers import OURS, ROCKSDB
from integration.operators.replay import Case, StateView, collect_into, lines, replay_both, run, write_inputs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    from integration.operators.replay import Lines, Query

STATES = tuple(StateView({"stateVarName": name}) for name in ("total", "ids", "words"))
TIMERS = (StateView({"readRegisteredTimers": "true"}),)
_ENCODING = "spark.sql.streaming.stateStore.encodingFormat"


def _query(processor: type[StatefulProcessor], mode: str, *, pandas: bool = False, initial: bool = False) -> Query:
    def query(frames: Sequence[DataFrame]) -> DataFrame:
        events = frames[0].withWatermark("at", "15 minutes")
        spark = events.sparkSession
        ids = spark.createDataFrame([(1, 1001), (2, 1002), (99, 1099)], "user int, id bigint").groupBy("user")
        grouped = events.groupBy("user")
        call = grouped.transformWithStateInPandas if pandas else grouped.transformWithState
        return call(processor(), OUT, "Append", mode, ids if initial else None)

    return query


EVENTS = (inputs.events(seed=16),)
CASES = {
    "rows": Case(_query(Visits, "EventTime"), EVENTS, state=(*STATES, *TIMERS)),
    "rows, Avro": Case(_query(Visits, "EventTime"), EVENTS, settings={_ENCODING: "avro"}, state=(*STATES, *TIMERS)),
    "frames, initial state": Case(
        _query(Frames, "EventTime", pandas=True, initial=True), EVENTS, state=(*STATES, *TIMERS)
    ),
    "rows, initial state": Case(_query(Visits, "EventTime", initial=True), EVENTS, state=(*STATES, *TIMERS)),
    "values that expire at once": Case(
        _query(Forgetful, "ProcessingTime"), EVENTS, runs=(1, 1, 1), one_batch_a_run=True, state=()
    ),
    "values that live for a day": Case(
        _query(Durable, "ProcessingTime"),
        EVENTS,
        runs=(1, 1, 1),
        one_batch_a_run=True,
        state=tuple(
            replace(each, columns=("key", column))
            for each, column in zip(
                STATES, ("value.value.rows", "list_element.value", "user_map_value.value"), strict=True
            )
        ),
    ),
}


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "version"), [(name, 1 + number % 2) for number, name in enumerate(CASES)])
def test_rows_and_state_are_those_of_sparks_own_store(
    name: str, version: int, spark: SparkSession, tmp_path: Path
) -> None:
    expected, actual = replay_both(spark, CASES[name], ROCKSDB, OURS.in_format(version), tmp_path)
    assert expected.batches == actual.batches
    assert sum(map(len, actual.batches.values())) > 0
    assert expected.counts == actual.counts
    assert expected.state == actual.state


def evolving(schema: str, other_values: tuple[object, ...]) -> Query:
    """A query whose states have these columns."""

    def query(frames: Sequence[DataFrame]) -> DataFrame:
        processor = Evolving(schema, other_values)
        return (
            frames[0].groupBy("user").transformWithState(processor, "user int, what string", "Update", "ProcessingTime")
        )

    return query


@pytest.mark.in_turn
def test_values_of_earlier_schemas_are_read_as_on_sparks_own_store_when_schemas_evolve(
    spark: SparkSession, tmp_path: Path
) -> None:
    schemas = (
        ("id int, gone string, deep struct<a: int, b: string>", ("x", (1, "b"))),
        ("id bigint, deep struct<c: array<int>, a: bigint>, added string", (([1, 2], 3), "new")),
    )
    found: dict[str, dict[int, Lines]] = {"rocksdb": {}, "ckpt": {}}
    for provider in (ROCKSDB, OURS):
        session = provider.session(spark, **{_ENCODING: "avro"})
        for number, schema in enumerate((*schemas, schemas[1])):
            case = Case(evolving(*schema), EVENTS, "update", one_batch_a_run=True)
            folder = tmp_path / provider.name
            write_inputs(case, folder, number, number + 1)
            run(session, case, folder, collect_into(found[provider.name]))
    assert found["ckpt"] == found["rocksdb"]
    assert len(found["ckpt"]) == 3
    for name in ("last", "all", "words"):
        theirs, ours = (
            lines(
                each.session(spark)
                .read.format("statestore")
                .option("stateVarName", name)
                .load(str(tmp_path / each.name / "checkpoint"))
            )
            for each in (ROCKSDB, OURS)
        )
        assert _without_ends(ours) == _without_ends(theirs)
        with ckpt.reading.open_state(str(tmp_path / "ckpt" / "checkpoint"), state=name) as state:
            values = state.to_arrow()["value"].to_pylist()
        inner = [value.get("value", value) for value in values]
        assert {"id", "deep", "added"} == set(inner[0])
        assert len(inner) == len(ours)
        were_read = [value["deep"] == {"c": None, "a": 1} and value["added"] is None for value in inner]
        assert name == "last" or any(were_read)  # all last values are new


def _without_ends(found: Lines) -> list[str]:
    """Rows without the instants at which they expire."""
    return sorted(re.sub(r"(ttlExpirationMs|expiration_timestamp)=\d+", "", line) for line in found)


def test_a_query_over_what_is_there_ends_although_it_has_timers_of_processing_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    case = Case(_query(Durable, "ProcessingTime"), EVENTS)
    write_inputs(case, tmp_path, 0, 2)
    batches: dict[int, Lines] = {}
    run(OURS.session(spark), case, tmp_path, collect_into(batches))  # with the trigger availableNow
    assert sum(map(len, batches.values())) > 0
