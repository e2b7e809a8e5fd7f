"""What may change between two runs of a query: the checkpoint format, the conf, the program."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators import inputs, test_aggregation, test_join, test_session_windows
from integration.operators.providers import CHECKPOINT_FORMAT, HDFS_BACKED, ROCKSDB
from integration.operators.replay import Case, collect_into, read_state, replay, run, write_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from integration.operators.conftest import Compare
    from integration.operators.providers import Provider
    from integration.operators.replay import Lines, Query

_RESTARTED = {
    "aggregation": test_aggregation.CASES["window, watermark, append"],
    "session windows": test_session_windows.CASES["one key"],
    "join, format 2": test_join.CASES["leftOuter, format 2"],
    "join, format 4": test_join.CASES["leftOuter, format 4"],
}
_EVENTS = inputs.events(seed=15)


def _reference(name: str) -> Provider:
    return ROCKSDB if name.endswith("4") else HDFS_BACKED


@pytest.mark.parametrize(
    ("formats", "name"),
    [
        pytest.param((1, 1, 1, 1), "join, format 4", marks=pytest.mark.matrix),
        pytest.param((1, 2, 2, 1), "session windows", marks=pytest.mark.matrix),
        pytest.param((1, 2, 2, 1), "join, format 2", marks=pytest.mark.matrix),
        ((2, 1, 1, 2), "aggregation"),
    ],
)
def test_state_equals_sparks_when_the_checkpoint_format_changes_between_runs(
    formats: tuple[int, ...], name: str, spark: SparkSession, provider: Provider, tmp_path: Path
) -> None:
    case = replace(_RESTARTED[name], runs=(1, 1, 1, 1))
    flipped = replace(case, run_settings=tuple({CHECKPOINT_FORMAT: str(version)} for version in formats))
    expected = replay(spark, case, _reference(name), tmp_path / "expected")
    actual = replay(spark, flipped, provider, tmp_path / "actual")
    assert any(expected.batches.values())
    assert actual == expected


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("partitions", "name"),
    [
        (1, "join, format 4"),
        (7, "session windows"),
        pytest.param(1, "aggregation", marks=pytest.mark.matrix),
        pytest.param(7, "join, format 2", marks=pytest.mark.matrix),
    ],
)
def test_state_equals_sparks_when_there_are_other_numbers_of_partitions(
    partitions: int, name: str, compare: Compare
) -> None:
    case = _RESTARTED[name]
    settings = {**case.settings, SHUFFLE_PARTITIONS: str(partitions)}
    compare(replace(case, settings=settings), _reference(name))


@pytest.mark.parametrize("name", ["aggregation", pytest.param("join, format 2", marks=pytest.mark.matrix)])
def test_partitions_stay_what_they_were_when_the_conf_of_a_restart_has_another_number(
    name: str, compare: Compare
) -> None:
    changed = tuple({SHUFFLE_PARTITIONS: partitions} for partitions in ("2", "7", "1"))
    compare(replace(_RESTARTED[name], runs=(2, 1, 1), run_settings=changed), _reference(name))


def _counted(factor: float, fails_at: float | None = None) -> Query:
    """Rows and weighed amounts by word. With ``fails_at``, one partition's task fails after the state store."""

    def query(frames: Sequence[DataFrame]) -> DataFrame:
        totals = frames[0].groupBy("word").agg(f.count("*").alias("rows"), f.sum(f.col("amount") * factor).alias("sum"))
        if fails_at is None:
            return totals
        planted = f.when(f.col("word") == "日本", f.raise_error(f.lit("planted"))).otherwise(f.col("rows"))
        return totals.withColumn("rows", f.when(f.col("rows") > fails_at, planted).otherwise(f.col("rows")))

    return query


def _fail_behind_batch(failing: int, batches: dict[int, Lines]) -> Callable[[DataFrame, int], None]:
    collect = collect_into(batches)

    def collect_and_fail(frame: DataFrame, batch_id: int) -> None:
        collect(frame, batch_id)
        if batch_id == failing:
            raise RuntimeError("planted")

    return collect_and_fail


@pytest.mark.parametrize(
    ("formats", "where"),
    [
        ((1, 1), "task"),
        ((2, 2), "sink"),
        pytest.param((1, 2), "task", marks=pytest.mark.matrix),
        pytest.param((2, 1), "sink", marks=pytest.mark.matrix),
    ],
)
def test_a_fixed_program_replaces_the_state_of_a_batch_that_was_not_committed(
    formats: tuple[int, int], where: str, spark: SparkSession, provider: Provider, tmp_path: Path
) -> None:
    broken = Case(_counted(1, fails_at=5 if where == "task" else None), (_EVENTS,), "update")
    fixed = Case(_counted(100), (_EVENTS,), "update")
    shown: dict[str, dict[int, Lines]] = {}
    states = {}
    for folder, each in (("expected", (HDFS_BACKED, HDFS_BACKED)), ("actual", tuple(map(provider.in_format, formats)))):
        shown[folder] = {}
        write_inputs(broken, tmp_path / folder, 0, 2)
        with pytest.raises(StreamingQueryException, match="planted"):
            run(each[0].session(spark), broken, tmp_path / folder, _fail_behind_batch(1, shown[folder]))
        write_inputs(fixed, tmp_path / folder, 2, 4)
        run(each[1].session(spark), fixed, tmp_path / folder, collect_into(shown[folder]))
        states[folder] = read_state(each[1].session(spark), fixed, tmp_path / folder)
    assert sorted(shown["expected"]) == [0, 1, 2, 3]
    assert shown["actual"] == shown["expected"]
    assert states["actual"] == states["expected"]
