"""The two backends: a query goes from one to the other when it is started again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from integration.operators import (
    inputs,
    test_aggregation,
    test_deduplication,
    test_join,
    test_session_windows,
)
from integration.operators.keyed import EVENTS, TOTALS, Totals, keyed
from integration.operators.providers import BACKEND, HDFS_BACKED, IN_MEMORY, OURS, ROCKSDB
from integration.operators.replay import Case, collect_into, replay, run, write_inputs
from integration.progress import recent_progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from integration.operators.providers import Provider

_CASES = {
    "aggregation": test_aggregation.CASES["window, watermark, append"],
    "aggregation, complete": test_aggregation.CASES["window, complete"],
    "session windows": test_session_windows.CASES["one key"],
    "within watermark": test_deduplication.CASES["within watermark, columns"],
    "join, format 2": test_join.CASES["leftOuter, format 2"],
    "join, format 4": test_join.CASES["leftOuter, format 4"],
}
_BOTH_WAYS = tuple({BACKEND: backend} for backend in ("memory", "rocksdb", "memory", "rocksdb"))


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("aggregation", 2),
        ("session windows", 1),
        ("join, format 4", 2),
        ("within watermark", 2),
        pytest.param("aggregation, complete", 1, marks=pytest.mark.matrix),
        pytest.param("join, format 2", 1, marks=pytest.mark.matrix),
    ],
)
def test_state_equals_sparks_when_the_backend_changes_between_runs(
    name: str, version: int, spark: SparkSession, tmp_path: Path
) -> None:
    case = replace(_CASES[name], runs=(1, 1, 1, 1))
    switched = replace(case, run_settings=_BOTH_WAYS)
    expected = replay(spark, case, ROCKSDB if name.endswith("4") else HDFS_BACKED, tmp_path / "expected")
    actual = replay(spark, switched, OURS.in_format(version), tmp_path / "actual")
    assert any(expected.batches.values())
    assert actual == expected


def test_a_keyed_operator_goes_on_when_its_backend_changes(spark: SparkSession, tmp_path: Path) -> None:
    case = Case(keyed(Totals(), TOTALS), (EVENTS,), "update", runs=(1, 1, 1, 1), state=())
    switched = replace(case, run_settings=_BOTH_WAYS)
    expected = replay(spark, case, OURS, tmp_path / "expected")
    assert any(expected.batches.values())
    assert replay(spark, switched, OURS, tmp_path / "actual") == expected


def _metrics(spark: SparkSession, provider: Provider, folder: Path) -> Sequence[Mapping[str, int]]:
    """Those of the store in four batches of an aggregation."""
    case = Case(test_aggregation.CASES["by key, update"].query, (inputs.events(seed=1),), "update", runs=(4,))
    write_inputs(case, folder, 0, 4)
    query = run(provider.session(spark), case, folder, collect_into({}))
    metrics = [operator.customMetrics for each in recent_progress(query) for operator in each.stateOperators]
    assert len(metrics) >= 4
    return metrics


def test_a_store_is_read_from_memory_alone_when_its_backend_is_memory(spark: SparkSession, tmp_path: Path) -> None:
    metrics = _metrics(spark, IN_MEMORY, tmp_path)
    assert all(each["ckptMemoryBytes"] > 0 for each in metrics)
    assert {each["ckptCacheMisses"] + each["ckptExistenceReads"] + each["ckptCatchUpTimeMs"] for each in metrics} == {0}
    assert {each["ckptMemoryFallbacks"] for each in metrics} == {0}


def test_a_batch_finds_the_rows_of_the_batch_before_in_memory(spark: SparkSession, tmp_path: Path) -> None:
    later = _metrics(spark, OURS, tmp_path)[1:]
    assert {each["ckptExistenceReads"] for each in later} == {0}
    assert all(each["ckptCacheHits"] == each["ckptWrittenRows"] > 0 for each in later)
