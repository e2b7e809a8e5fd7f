"""State read by ``open_state`` and ``ckpt_state``: what Spark's own reader shows, and what programs have stored."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row  # noqa: F401 - the text of rows names it
from pyspark.sql import functions as f

import pyspark_ckpt
from integration.operators import (
    test_aggregation,
    test_deduplication,
    test_join,
    test_limit,
    test_session_windows,
)
from integration.operators.keyed import EVENTS, TOTALS, Totals, keyed, play
from integration.operators.providers import OURS
from integration.operators.replay import lines, replay
from integration.sample import sampled
from pyspark_ckpt.operators.types.columns import python_values

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
_VALUES = {3: "{}-keyWithIndexToValue", 4: "{}-keyWithTsToValues"}


_LEFT_OUT = {
    "values of all types",
    "windows",
    "everything",
    "deduplication",
    "session windows",
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", sampled(CASES, _LEFT_OUT))
def test_rows_are_those_of_sparks_reader(name: str, spark: SparkSession, tmp_path: Path) -> None:
    replay(spark, replace(CASES[name], state=()), OURS, tmp_path)
    path = str(tmp_path / "checkpoint")
    frame = spark.read.format("ckpt_state").load(path)
    expected = OURS.session(spark).read.format("statestore").load(path)
    # By position: columns of one name are told apart.
    same = [f.col(each).cast(frame.schema[each].dataType) for each in ("key", "value")]
    shown = lines(expected.select(*same, "partition_id"))
    assert shown
    assert lines(frame.selectExpr("key", "value", "partition as partition_id")) == shown
    with pyspark_ckpt.reading.open_state(path) as state:
        table = state.to_arrow()
        assert state.count() == len(table) == len(shown)
        if _can_be_looked_for(state):
            rows = (python_values(table[each].combine_chunks()) for each in ("key", "value"))
            for key, value in list(zip(*rows, strict=True))[:20]:
                assert repr(state.get(key)) == repr(value)


def _can_be_looked_for(state: pyspark_ckpt.reading.StateReader) -> bool:
    return not any(str(field.type) == "null" for field in state.schema.field("key").type)


@pytest.mark.parametrize("version", sampled(_JOINS, [3]))
def test_the_rows_of_a_join_are_those_of_sparks_reader(version: int, spark: SparkSession, tmp_path: Path) -> None:
    replay(spark, replace(_JOINS[version], state=()), OURS, tmp_path)
    path = str(tmp_path / "checkpoint")
    sides = {
        side: OURS.session(spark).read.format("statestore").option("joinSide", side).load(path)
        for side in ("left", "right")
    }
    shown = {side: lines(frame.select("key.field0", "value.*", "partition_id")) for side, frame in sides.items()}
    for side, frame in sides.items():
        columns = [f"value.`{name}`" for name in frame.selectExpr("value.*").columns]
        place: dict[str, Any] = (
            {"store": f"{side}-keyWithIndexToValue"} if version == 2 else {"state": _VALUES[version].format(side)}
        )
        found = spark.read.format("ckpt_state").options(**place).load(path)
        assert lines(found.selectExpr("key.field0", *columns, "partition as partition_id")) == shown[side]
        assert shown[side]
        with pyspark_ckpt.reading.open_state(path, **place) as state:
            table = state.to_arrow()
            of_key: dict[Any, list[str]] = {}
            for key, value in zip(*(python_values(table[n].combine_chunks()) for n in ("key", "value")), strict=True):
                of_key.setdefault(key[0], []).append(repr(value))
            assert {key: sorted(map(repr, state.get(key))) for key in of_key} == {
                key: sorted(values) for key, values in of_key.items()
            }


def test_states_of_a_keyed_operator_are_what_the_program_has_shown(spark: SparkSession, tmp_path: Path) -> None:
    batches = play(spark, keyed(Totals(), TOTALS), EVENTS, tmp_path)
    shown: dict[Any, tuple[int, int]] = {}
    for _, rows in sorted(batches.items()):
        for row in map(eval, rows):
            shown[row.user] = (row.rows, row.total)
    path = str(tmp_path / "checkpoint")
    frame = spark.read.format("ckpt_state").option("uid", "it")
    of_rows, of_total = (frame.option("state", name).load(path) for name in ("rows", "total"))
    joined = of_rows.alias("r").join(of_total.alias("t"), f.expr("r.key <=> t.key"))
    found = joined.selectExpr("r.key.user", "r.value as rows", "t.value as total").collect()
    assert {row.user: (row.rows, row.total) for row in found} == shown
    changes = spark.read.format("ckpt_state").options(uid="it", state="total", readChangeFeed="true").load(path)
    totals = {(row.user, row.batch_id): row.value for row in changes.selectExpr("*", "key.user as user").collect()}
    assert totals == {(row.user, batch): row.total for batch, rows in batches.items() for row in map(eval, rows)}
    by_hash = of_rows.selectExpr(
        "hash = hash(key.user) and key_group = shiftrightunsigned(hash, 17) as same"
    ).distinct()
    assert [row.same for row in by_hash.collect()] == [True]
    with pyspark_ckpt.reading.open_state(path, uid="it", state="total") as state:
        assert {user: state.get(user) for user in shown} == {user: total for user, (_, total) in shown.items()}
    with pytest.raises(PySparkException, match="no state for uid"):
        frame.option("state", "nope").load(path)
    with pytest.raises(PySparkException, match="no version 99: there are 1 to"):
        frame.option("state", "rows").option("version", 99).load(path)
    with pytest.raises(PySparkException, match=r"There is no option .*s3endpont"):
        frame.option("state", "rows").option("s3Endpont", "x").load(path)
