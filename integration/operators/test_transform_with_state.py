"""transformWithState, on this store and on Spark's own: the same rows, batch by batch, and the same state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from integration.operators import inputs
from integration.operators.processors import OUT, Durable, Forgetful, Frames, Visits
from integration.operators.providers import OURS, ROCKSDB
from integration.operators.replay import Case, StateView, replay_both

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    from integration.operators.replay import Query

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


@pytest.mark.parametrize(("name", "version"), [(name, 1 + number % 2) for number, name in enumerate(CASES)])
def test_rows_and_state_are_those_of_sparks_own_store(
    name: str, version: int, spark: SparkSession, tmp_path: Path
) -> None:
    expected, actual = replay_both(spark, CASES[name], ROCKSDB, OURS.in_format(version), tmp_path)
    assert expected.batches == actual.batches
    assert sum(map(len, actual.batches.values())) > 0
    assert expected.counts == actual.counts
    assert expected.state == actual.state
