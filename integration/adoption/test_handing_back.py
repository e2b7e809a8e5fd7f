"""Every operator, first on this store and then on one of Spark's own providers: as if it had never moved."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from integration.adoption.halves import CASES, ROCKSDB_ALONE, WITH_CHANGELOG, pair, play
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.providers import HDFS_BACKED, OURS, ROCKSDB
from integration.operators.replay import collect_into, replay, run, write_inputs
from pyspark_ckpt.moving import hand_back
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from integration.operators.providers import Provider
    from pyspark_ckpt.offline.adopting.stores import Provider as Kind

PROVIDERS: dict[str, tuple[Kind, Provider]] = {
    "rocksdb": ("rocksdb", ROCKSDB),
    "rocksdb with changelog": ("rocksdb", WITH_CHANGELOG),
    "hdfs": ("hdfs", HDFS_BACKED),
}


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "provider"), pair(PROVIDERS))
def test_a_query_goes_on_without_this_store_as_if_it_had_never_been_on_it(
    name: str, provider: str, spark: SparkSession, tmp_path: Path
) -> None:
    case, _ = CASES[name]
    kind, after = PROVIDERS[provider]
    expected = replay(spark, case, after, tmp_path / "expected")
    batches, state = play(spark, case, (OURS, after), lambda old, new: hand_back(old, new, kind), tmp_path / "actual")
    assert any(expected.batches.values())
    assert batches == expected.batches
    assert state == expected.state


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "provider"), [("aggregation of windows", "rocksdb"), ("join, format 2", "hdfs")])
def test_a_query_goes_on_when_partitions_have_had_no_rows(
    name: str, provider: str, spark: SparkSession, tmp_path: Path
) -> None:
    case, _ = CASES[name]
    case = replace(case, settings={**case.settings, SHUFFLE_PARTITIONS: "23"})
    kind, after = PROVIDERS[provider]
    expected = replay(spark, case, after, tmp_path / "expected")

    batches, state = play(spark, case, (OURS, after), lambda old, new: hand_back(old, new, kind), tmp_path / "actual")
    assert batches == expected.batches
    assert state == expected.state


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(ROCKSDB_ALONE)][:1])
def test_state_that_a_provider_does_not_have_is_refused_by_name(name: str, spark: SparkSession, tmp_path: Path) -> None:
    case, _ = CASES[name]
    write_inputs(case, tmp_path, 0, 1)
    session = OURS.session(spark, **case.settings)
    run(session, case, tmp_path, collect_into({}))
    with pytest.raises(InvalidInputError, match=r"has several states in a store.* needs `provider` 'rocksdb'"):
        hand_back(tmp_path / "checkpoint", tmp_path / "handed-back", "hdfs")
    assert not (tmp_path / "handed-back").exists()
