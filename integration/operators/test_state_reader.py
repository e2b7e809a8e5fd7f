"""Spark's own readers of state on our checkpoints: ``statestore`` and ``state-metadata``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.operators import test_aggregation, test_chains, test_join
from integration.operators.providers import HDFS_BACKED
from integration.operators.replay import lines, read_state, replay_both

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from integration.operators.providers import Provider

_BY_KEY = test_aggregation.CASES["by key, update"]
_WITH_METADATA = {
    "an aggregation": _BY_KEY,
    "a join": test_join.CASES["leftOuter, format 2"],
    "two operators": test_chains.CASES["windows after a deduplication"],
}


def test_statestore_reads_every_batch_when_its_id_is_given(
    spark: SparkSession, provider: Provider, tmp_path: Path
) -> None:
    recorded, _ = replay_both(spark, _BY_KEY, HDFS_BACKED, provider, tmp_path)
    batches = sorted(recorded.batches)
    assert len(batches) == sum(_BY_KEY.runs)
    for batch in batches:
        expected, actual = (
            read_state(each.session(spark), _BY_KEY, tmp_path / folder, batchId=str(batch))
            for each, folder in ((HDFS_BACKED, "expected"), (provider, "actual"))
        )
        assert expected[0]
        assert actual == expected


@pytest.mark.in_turn
@pytest.mark.parametrize("name", _WITH_METADATA)
def test_state_metadata_equals_sparks_when_read_from_the_checkpoint(
    name: str, spark: SparkSession, provider: Provider, tmp_path: Path
) -> None:
    replay_both(spark, _WITH_METADATA[name], HDFS_BACKED, provider, tmp_path)
    expected, actual = (
        lines(spark.read.format("state-metadata").load(str(tmp_path / folder / "checkpoint")))
        for folder in ("expected", "actual")
    )
    assert expected
    assert actual == expected
