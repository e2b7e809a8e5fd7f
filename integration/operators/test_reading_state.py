"""State read by ``open_state`` and ``ckpt_state``: what Spark's own reader shows, and what programs have stored."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

import pyspark_ckpt
from integration.operators import (
    inputs,
    test_aggregation,
    test_deduplication,
    test_join,
    test_limit,
    test_session_windows,
)
from integration.operators.keyed import EVENTS, TOTALS, Totals, keyed, play
from integration.operators.providers import OURS
from integration.operators.replay import StateView, lines, replay
from pyspark_ckpt.operators.columns import python_values

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CASES = {
    "keys of all types": test_aggregation.CASES["keys of all types"],
    "values of all types": test_aggregation.CASES["values of all types"],
    "zeroes, NaN and null": test_aggregation.CASES["zeroes, NaN and null as keys"],
    "windows": test_aggregation.CASES["window, watermark, append"],
    "everything": test_aggregation.CASES["everything, update"],
    "deduplication": test_deduplication.CASES["all types"],
    "deduplication within watermark": test_deduplication.CASES["within watermark, columns"],
    "limit": test_limit.CASES["reached in the third batch"],
    "session windows": test_session_windows.CASES["two keys"],
}
_JOINS = {version: test_join.CASES[f"leftOuter, format {version}"] for version in (2, 4)} | {
    3: test_join.CASES["fullOuter, format 3"]
}


@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_sparks_reader(name: str, spark: SparkSession, tmp_path: Path) -> None:
    case = replace(CASES[name], state=())
    replay(spark, case, OURS, tmp_path)
    path = str(tmp_path / "checkpoint")
    expected = lines(OURS.session(spark).read.format("statestore").load(path).select("key", "value", "partition_id"))
    frame = spark.read.format("ckpt_state").load(path)
    assert lines(frame.selectExpr("key", "value", "partition as partition_id")) == expected
    assert expected
    with pyspark_ckpt.open_state(path) as state:
        table = state.to_arrow()
        assert state.count() == len(expected) == len(table)
        if "NaN" not in name:  # which is not equal to itself
            for key, value in zip(
                *(python_values(table[each].combine_chunks()) for each in ("key", "value")), strict=True
            ):
                found = state.get(key) if len(key) and table["key"].type[0].type != "null" else value
                assert value in (found, *(found if isinstance(found, list) else ()))


@pytest.mark.parametrize("version", _JOINS)
def test_the_rows_of_a_join_are_those_of_sparks_reader(version: int, spark: SparkSession, tmp_path: Path) -> None:
    case = replace(_JOINS[version], state=())
    replay(spark, case, OURS, tmp_path)
    path = str(tmp_path / "checkpoint")
    with pyspark_ckpt.open_state(path) as found:
        states = found.states
    for state in states:
        print(state.whose, state.rows, state.descriptor.key_encoder, state.descriptor.multiple_values)
    for side in ("left", "right"):
        expected = OURS.session(spark).read.format("statestore").option("joinSide", side).load(path)
        (values,) = (
            state for state in states if side in state.store + state.name and "ToValue" in state.store + state.name
        )
        frame = spark.read.format("ckpt_state").options(store=values.store, state=values.name).load(path)
        columns = [f"value.`{column}`" for column in expected.selectExpr("value.*").columns]
        shown = lines(expected.selectExpr("key.field0", *columns, "partition_id"))
        assert shown
        assert lines(frame.selectExpr("key.field0", *columns, "partition as partition_id")) == shown
