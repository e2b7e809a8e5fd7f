"""Every operator, first on one of Spark's own providers and then on ours: as if it had never moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.adoption.halves import CASES, CHANGELOG, WITH_CHANGELOG, pair, play
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators import test_join
from integration.operators.providers import CHECKPOINT_FORMAT, HDFS_BACKED, OURS, ROCKSDB, Provider
from integration.operators.replay import collect_into, replay, run, write_inputs
from integration.savepoints.test_rescale import without_partitions
from integration.short import has
from pyspark_ckpt.moving import adopt
from pyspark_ckpt.pyspark_releases import has_commit_ids_for_all
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


PROVIDERS = {"rocksdb": ROCKSDB, "rocksdb with changelog": WITH_CHANGELOG, "hdfs": HDFS_BACKED}
if has_commit_ids_for_all():
    PROVIDERS["rocksdb, format 2"] = Provider("format 2", ROCKSDB.provider_class, {CHECKPOINT_FORMAT: "2", **CHANGELOG})


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "provider"), pair(PROVIDERS))
def test_a_query_goes_on_with_its_state_as_if_it_had_not_moved(
    name: str, provider: str, spark: SparkSession, tmp_path: Path
) -> None:
    case, partitions = CASES[name]
    before = PROVIDERS[provider]
    expected = replay(spark, case, before, tmp_path / "expected")
    batches, state = play(
        spark,
        case,
        (before, _ours(before)),
        lambda old, new: adopt(old, new, partitions),
        tmp_path / "actual",
        **{SHUFFLE_PARTITIONS: str(partitions)},
    )
    assert any(expected.batches.values())
    assert batches == expected.batches
    assert without_partitions(state) == without_partitions(expected.state)


def _ours(before: Provider) -> Provider:
    """Our provider. A checkpoint keeps its format, unless this Spark can change it."""
    return OURS if has("4.2") else OURS.in_format(int(before.settings[CHECKPOINT_FORMAT]))


def test_state_without_a_schema_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    case = test_join.CASES["inner, format 1"]
    write_inputs(case, tmp_path, 0, 1)
    run(ROCKSDB.session(spark, **case.settings), case, tmp_path, collect_into({}))
    for schema in (tmp_path / "checkpoint" / "state").rglob("_metadata/schema"):  # Spark 4.0 writes it all the same
        schema.unlink()
    with pytest.raises(
        InvalidInputError, match=r"\(symmetricHashJoin\) has no schema of its state in .*stateSchemaCheck"
    ):
        adopt(tmp_path / "checkpoint", tmp_path / "adopted")
    assert not (tmp_path / "adopted").exists()
