"""A query goes back to an older savepoint, and its sink has later batches already: no row is lost without a word."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import IllegalArgumentException

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.savepoints.returning import FORMATS, Files
from integration.savepoints.test_running import batches
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SINK_AHEAD = "spark.sql.streaming.stateStore.ckpt.sinkAhead"


@pytest.mark.parametrize("checkpoint_format", FORMATS)
def test_each_row_is_in_the_sink_once_when_the_batches_are_planned_as_before(
    checkpoint_format: int, spark: SparkSession, tmp_path: Path
) -> None:
    """Batch 3 would have two files, and the sink would drop the second one with the first: that is refused."""
    files = Files(spark, tmp_path, checkpoint_format)
    files.put(4, 5)
    files.run("old", maxFilesPerTrigger="1")
    ckpt.restore(tmp_path / "saved", tmp_path / "new")
    with pytest.raises(
        IllegalArgumentException,
        match=r"its sink .*output.* has batches up to 5, but this checkpoint knows only those up to 2.*replay_from",
    ):
        files.run("new")
    assert batches(tmp_path / "new", "offsets") == [1, 2]
    ckpt.restore(tmp_path / "saved", tmp_path / "again", replay_from=tmp_path / "old")
    files.put(6)
    files.run("again")
    assert batches(tmp_path / "again", "commits")[-4:] == [3, 4, 5, 6]
    assert not batches(tmp_path / "again", "_ckpt/replay")
    files.put(7)
    files.run("again")
    assert files.users() == list(range(8))


def test_each_row_is_in_the_sink_once_when_the_query_was_moved_after_the_savepoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Batches 3 to 5 run on one checkpoint, and 6 and 7 on another: neither has the plans of all of them."""
    files = Files(spark, tmp_path, FORMATS[-1], later=(3, 4, 5))
    ckpt.restore(tmp_path / "old", tmp_path / "moved", parallelism=3)
    files.session.conf.set(SHUFFLE_PARTITIONS, "3")
    files.put(6, 7)
    files.run("moved", maxFilesPerTrigger="1")
    files.session.conf.set(SHUFFLE_PARTITIONS, "2")
    with pytest.raises(InvalidInputError, match=r"moved has no offsets/3") as refused:
        ckpt.restore(tmp_path / "saved", tmp_path / "new", replay_from=tmp_path / "moved")
    assert "moved begins with offsets/4: a restore or a rescaling has made it." in refused.value.hint
    ckpt.restore(tmp_path / "saved", tmp_path / "part", replay_from=tmp_path / "old")
    with pytest.raises(
        IllegalArgumentException,
        match=r"up to 7, but this checkpoint knows only those up to 5.*replay_from all checkpoints .* it was moved",
    ):
        files.run("part")
    ckpt.restore(tmp_path / "saved", tmp_path / "new", replay_from=[tmp_path / "old", tmp_path / "moved"])
    files.put(8)
    files.run("new")
    assert batches(tmp_path / "new", "commits")[-6:] == [3, 4, 5, 6, 7, 8]
    assert files.users() == list(range(9))


@pytest.mark.in_turn
def test_batches_go_on_as_before_when_the_query_ends_between_them(spark: SparkSession, tmp_path: Path) -> None:
    """It is also saved and rescaled then: the plans that are left go with it."""
    files = Files(spark, tmp_path, FORMATS[-1])
    files.put(4, 5)
    files.run("old", maxFilesPerTrigger="1")
    ckpt.restore(tmp_path / "saved", tmp_path / "new", replay_from=tmp_path / "old", parallelism=3)
    files.session.conf.set(SHUFFLE_PARTITIONS, "3")
    files.put(6)
    files.run("new", trigger="once")
    assert batches(tmp_path / "new", "commits")[-1] == 3
    with pytest.raises(LifecycleError, match=r"not yet repeated batches 4 to 5[.].* When batch 5 is committed, stop"):
        ckpt.moving.hand_back(tmp_path / "new", tmp_path / "Spark's")
    assert not (tmp_path / "Spark's").exists()
    ckpt.savepoint(tmp_path / "new", tmp_path / "again")
    ckpt.restore(tmp_path / "again", tmp_path / "newer", parallelism=2)
    files.session.conf.set(SHUFFLE_PARTITIONS, "2")
    files.run("newer")
    assert batches(tmp_path / "newer", "commits")[-1] == 6
    assert files.users() == list(range(7))


@pytest.mark.in_turn
@pytest.mark.parametrize("checkpoint_format", FORMATS)
def test_a_batch_that_is_skipped_runs_for_its_state_when_the_user_allows_it(
    checkpoint_format: int, spark: SparkSession, tmp_path: Path
) -> None:
    """The files are cut as before, so the sink has the same rows. A new query is refused on a sink that is in use."""
    files = Files(spark, tmp_path, checkpoint_format)
    with pytest.raises(IllegalArgumentException, match=r"up to 3, but this checkpoint knows none.*batches 0 to 3"):
        files.run("fresh")
    ckpt.restore(tmp_path / "saved", tmp_path / "new")
    files.put(4, 5)
    files.session.conf.set(SINK_AHEAD, "skip")
    files.run("new", maxFilesPerTrigger="1")
    assert batches(tmp_path / "new", "commits")[-3:] == [3, 4, 5]
    assert files.users() == list(range(6))
