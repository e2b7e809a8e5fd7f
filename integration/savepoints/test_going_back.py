"""A query goes back to an older savepoint, and its sink has later batches already: no row is lost without a word."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import IllegalArgumentException

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.providers import OURS
from integration.savepoints.test_composed import Count
from integration.savepoints.test_running import batches
from integration.short import has

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SINK_AHEAD = "spark.sql.streaming.stateStore.ckpt.sinkAhead"
REFUSED = r"its sink .*output.* has batches up to 3, and this checkpoint knows those up to 2.*replay_from"
FORMATS = [1, 2] if has("4.1") else [1]


def _counted(rows: DataFrame) -> DataFrame:
    return ckpt.keyed(rows, by="user", uid="counts").process(Count(), "user long, n long", "append")


class Files:
    """A query from files to files: file N has a row of user N and one of user -1."""

    def __init__(self, spark: SparkSession, folder: Path, checkpoint_format: int) -> None:
        """Begin in ``folder``."""
        self.session = OURS.in_format(checkpoint_format).session(spark.newSession(), **{SHUFFLE_PARTITIONS: "2"})
        self.folder, self.program = folder, _counted
        (folder / "input").mkdir()

    def put(self, *files: int) -> None:
        """Give the query files to read."""
        for file in files:
            lines = [json.dumps({"user": user}) for user in (file, -1)]
            (self.folder / "new").write_text("\n".join(lines))
            (self.folder / "new").rename(self.folder / "input" / f"{file}.json")

    def run(self, checkpoint: str, output: str = "output", trigger: str = "availableNow", **options: str) -> None:
        """Process what there is, or a batch of it."""
        rows = self.session.readStream.schema("user long").options(**options).json(str(self.folder / "input"))
        writer = self.program(rows).writeStream.format("json").option("path", str(self.folder / output))
        writer = writer.option("checkpointLocation", str(self.folder / checkpoint)).trigger(**{trigger: True})
        query = writer.start()
        query.awaitTermination()
        assert query.exception() is None

    def found(self, output: str = "output") -> list[tuple[int, int]]:
        """The rows of the sink."""
        rows = self.session.read.schema("user long, n long").json(str(self.folder / output)).collect()
        return sorted(tuple(row) for row in rows)

    def expected(self, files: int) -> list[tuple[int, int]]:
        """What the sink has if each row of so many files was counted once."""
        return sorted([(-1, n + 1) for n in range(files)] + [(file, 1) for file in range(files)])


@pytest.fixture(params=FORMATS)
def files(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Files:
    """A query that has gone on for a batch after its savepoint: the sink has batches 0 to 3."""
    files = Files(spark, tmp_path, request.param)
    for file in range(4):
        files.put(file)
        files.run("old")
        if file == 2:
            ckpt.savepoint(tmp_path / "old", tmp_path / "saved")
    assert batches(tmp_path / "output", "_spark_metadata") == [0, 1, 2, 3]
    return files


def test_a_query_whose_sink_has_later_batches_does_not_start(files: Files, tmp_path: Path) -> None:
    """Batch 3 would have two files now, and the sink would drop the second one with the first."""
    ckpt.restore(tmp_path / "saved", tmp_path / "new")
    files.put(4)
    with pytest.raises(IllegalArgumentException, match=REFUSED):
        files.run("new")
    assert batches(tmp_path / "new", "offsets") == [1, 2]
    assert files.found() == files.expected(4)
    files.run("new", "elsewhere")
    assert files.found("elsewhere") == sorted(set(files.expected(5)) - set(files.expected(3)))


def test_each_row_is_in_the_sink_once_when_the_batches_are_planned_as_before(files: Files, tmp_path: Path) -> None:
    files.put(4, 5)
    files.run("old", maxFilesPerTrigger="1")
    ckpt.restore(tmp_path / "saved", tmp_path / "new", replay_from=tmp_path / "old")
    files.put(6, 7)
    files.run("new")
    assert batches(tmp_path / "new", "commits")[-4:] == [3, 4, 5, 6]
    assert files.found() == files.expected(8)
    assert not batches(tmp_path / "new", "_ckpt/replay")
    files.put(8)
    files.run("new")
    assert files.found() == files.expected(9)


def test_batches_go_on_as_before_when_the_query_ends_between_them(files: Files, tmp_path: Path) -> None:
    """It is also saved and rescaled then: the plans that are left go with it."""
    for file in (4, 5, 6):
        files.put(file)
        files.run("old")
    ckpt.restore(tmp_path / "saved", tmp_path / "new", replay_from=tmp_path / "old", parallelism=3)
    files.session.conf.set(SHUFFLE_PARTITIONS, "3")
    files.put(7)
    files.run("new", trigger="once")
    assert batches(tmp_path / "new", "commits")[-1] == 3
    ckpt.savepoint(tmp_path / "new", tmp_path / "again")
    ckpt.restore(tmp_path / "again", tmp_path / "newer", parallelism=2)
    files.session.conf.set(SHUFFLE_PARTITIONS, "2")
    files.run("newer")
    assert batches(tmp_path / "newer", "commits")[-1] == 7
    assert files.found() == files.expected(8)


def test_the_checkpoint_of_another_run_is_refused_as_one_to_plan_from(files: Files, tmp_path: Path) -> None:
    ckpt.branch(tmp_path / "old", tmp_path / "branch", batch=2)
    with pytest.raises(ckpt.InvalidInputError, match=r"`replay_from` is .*branch, the checkpoint of query "):
        ckpt.restore(tmp_path / "saved", tmp_path / "new", replay_from=tmp_path / "branch")
    with pytest.raises(ckpt.InvalidInputError, match=r"`replay_from` is .*input, which is not the checkpoint"):
        ckpt.restore(tmp_path / "saved", tmp_path / "new", replay_from=tmp_path / "input")
    for batch in (4, 5):
        files.put(batch)
        files.run("old")
    (tmp_path / "old" / "offsets" / "4").unlink()
    with pytest.raises(ckpt.InvalidInputError, match=r"old/offsets/4 is deleted: the batches after 2 cannot have"):
        ckpt.restore(tmp_path / "saved", tmp_path / "new", replay_from=tmp_path / "old")
    assert not (tmp_path / "new").exists()


def test_a_new_query_does_not_start_on_the_sink_of_another(files: Files) -> None:
    with pytest.raises(IllegalArgumentException, match=r"up to 3, and this checkpoint knows none.*batches 0 to 3"):
        files.run("fresh")


def test_a_batch_that_is_skipped_runs_for_its_state_when_the_user_allows_it(files: Files, tmp_path: Path) -> None:
    """The files are cut as before, so the sink has the same rows."""
    ckpt.restore(tmp_path / "saved", tmp_path / "new")
    files.put(4, 5)
    files.session.conf.set(SINK_AHEAD, "skip")
    files.run("new", maxFilesPerTrigger="1")
    assert batches(tmp_path / "new", "commits")[-3:] == [3, 4, 5]
    assert files.found() == files.expected(6)
