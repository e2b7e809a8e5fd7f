"""A query that was rescaled is refused on its old checkpoint: two queries would write to one sink."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import IllegalArgumentException, StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryListener

import pyspark_ckpt as ckpt
from integration.operators.providers import OURS
from integration.running.programs import Counting, require_each_batch
from integration.savepoints.test_running import expected
from pyspark_ckpt.running import first_commit
from pyspark_ckpt.state_store.attempts.runs import RUN_FORMAT, Epochs, RunObject
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.services.s3_server import S3Service

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

FORMATS = [1, 2] if OURS.settings["spark.sql.streaming.stateStore.checkpointFormatVersion"] == "2" else [1]
REFUSED = r"\[ConflictError\] The query is not started on file:{old}: .* file:{new} .*at 20.*Z, and "


def refused(old: Path | str, new: Path | str) -> str:
    """What the error says first."""
    return REFUSED.format(old=old, new=new)


def record(checkpoint: Path | str, moves_to: str = "", moved_at_ms: int = 0) -> None:
    """Take the next number on a checkpoint."""
    run = RunObject(RUN_FORMAT, str(uuid.uuid4()), "app-2 on elsewhere", moves_to, moved_at_ms)
    Epochs(LocalPlace(Path(checkpoint))).take(run)


@pytest.mark.parametrize("number", FORMATS)
def test_a_start_on_the_old_checkpoint_is_refused_and_the_query_runs_on(
    number: int, spark: SparkSession, tmp_path: Path
) -> None:
    program = Counting(spark, tmp_path, 2, OURS.in_format(number))
    other = Counting(spark, tmp_path, 2, OURS.in_format(number))
    new, newest = tmp_path / "query-3-partitions", tmp_path / "named"
    with program.running() as query:
        program.await_more()
        done = ckpt.rescale(query, program.start, 3)
        for each in (program, other):
            with pytest.raises(
                IllegalArgumentException, match=refused(program.checkpoint, new) + "goes on there. Start the program"
            ):
                each.start(each.checkpoint)
        assert done.query.isActive, "Spark has not ended it for the other run"
        program.await_more()
        done = ckpt.rescale(done.query, program.start, 2, new_checkpoint=newest)
        with pytest.raises(
            IllegalArgumentException, match=refused(program.checkpoint, new) + f"is now on file:{newest}. Start"
        ):
            other.start(program.checkpoint)
        program.await_more()
        done.query.stop()
        program.start(str(newest))
        program.await_more()
    program.require_all()
    assert not other.sink.shown


def test_a_branch_of_the_old_checkpoint_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    program, other = Counting(spark, tmp_path, 2), Counting(spark, tmp_path, 2)
    with program.running() as query:
        program.await_more()
        done = ckpt.rescale(query, program.start, 3)
        ckpt.moving.branch(program.checkpoint, tmp_path / "branch")
        other.start(str(tmp_path / "branch"))
        other.await_more()
        other.stop()
        assert done.query.isActive
    program.require_all()


def test_a_start_is_refused_although_the_new_query_had_no_data_yet(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once there are some, both would take them."""
    monkeypatch.setattr(first_commit, "IDLE_S", 0.5)
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "1.csv").write_text("a\n")
    session = Counting(spark, tmp_path, 2).session

    def start(checkpoint: str) -> Any:  # noqa: ANN401
        rows = session.readStream.schema("user string").csv(str(tmp_path / "inputs")).groupBy("user").count()
        writer = rows.writeStream.outputMode("complete").option("checkpointLocation", checkpoint)
        return writer.format("noop").start()

    query = start(str(tmp_path / "query"))
    query.processAllAvailable()
    done = ckpt.rescale(query, start, 3)
    try:
        assert done.downtime.first_batch_s is None
        with pytest.raises(
            IllegalArgumentException, match=refused(tmp_path / "query", tmp_path / "query-3-partitions")
        ):
            start(str(tmp_path / "query"))
        done.query.stop()
        with pytest.raises(InvalidInputError, match=r"was rescaled before, .*Start the query on .*query-3-partitions"):
            ckpt.rescale(tmp_path / "query", start, 4)
    finally:
        done.query.stop()


@pytest.mark.parametrize("at", ["before the start", "when it has started"])
def test_a_start_is_refused_if_the_driver_died_before_it_recorded_the_move(
    at: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The new checkpoint says that the query has gone there. Nothing may be done before that is looked at."""
    program = Counting(spark, tmp_path, 2)
    old, new = Path(program.checkpoint), tmp_path / "query-3-partitions"

    class Records(StreamingQueryListener):
        """Spark calls it on the query's own thread, before what refuses the query there."""

        def onQueryStarted(self, _event: Any) -> None:  # noqa: ANN401, N802 - Spark's name
            if is_wanted.is_set():
                record(old, f"file:{new}")

        def onQueryProgress(self, event: Any) -> None:  # noqa: ANN401, N802
            pass

        def onQueryIdle(self, event: Any) -> None:  # noqa: ANN401, N802
            pass

        def onQueryTerminated(self, event: Any) -> None:  # noqa: ANN401, N802
            pass

    listener, is_wanted = Records(), threading.Event()
    program.session.streams.addListener(listener)
    try:
        with program.running() as query:
            program.await_more()
            done = ckpt.rescale(query, program.start, 3)
            program.await_more()
            done.query.stop()
            record(old)  # lifts what the call has recorded
            entries = {log: sorted(path.name for path in (old / log).iterdir()) for log in ("offsets", "commits")}
            shown = len(program.sink.shown)
            if at == "before the start":
                record(old, f"file:{new}")
                with pytest.raises(IllegalArgumentException, match=refused(old, new) + "the query has committed batch"):
                    program.start(str(old))
            else:
                is_wanted.set()
                with pytest.raises(StreamingQueryException, match=refused(old, new) + "the query has committed batch"):
                    program.start(str(old)).awaitTermination(60)
                is_wanted.clear()
            assert len(program.sink.shown) == shown
            assert entries == {log: sorted(path.name for path in (old / log).iterdir()) for log in entries}
            program.start(str(new))
            program.await_more()
    finally:
        program.session.streams.removeListener(listener)
    program.require_all()


def test_a_query_whose_rescaling_did_not_get_to_a_batch_is_started_on_the_old_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As after a driver that died in the call, before and after the rescaling itself."""
    program = Counting(spark, tmp_path, 2)
    with program.running() as query:
        program.await_more()
        query.stop()
        for is_made in (False, True):
            record(program.checkpoint, f"file:{tmp_path}/query-3-partitions")
            if is_made:
                ckpt.restore(program.checkpoint, tmp_path / "query-3-partitions", parallelism=3)
            again = program.start(program.checkpoint)
            program.await_more()
            again.stop()
    require_each_batch(program)


def test_the_new_checkpoint_is_refused_once_the_query_was_started_again_on_the_old_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    """By a driver that was held up before it started the query on the new one, and comes back."""
    program, other = Counting(spark, tmp_path, 2), Counting(spark, tmp_path, 2)
    new = tmp_path / "query-3-partitions"

    def start(checkpoint: str) -> Any:  # noqa: ANN401
        if Path(checkpoint.removeprefix("file:")) == new:  # as another driver does
            query = other.start(program.checkpoint)
            other.await_more()
            query.stop()
        return program.start(checkpoint)

    with program.running() as query:
        program.await_more()
        with pytest.raises(
            ckpt.errors.RescaleError, match=refused(new, program.checkpoint) + "the query has committed batch"
        ) as told:
            ckpt.rescale(query, start, 3)
        assert "\tat " not in str(told.value)
        program.await_more()
    shown = dict(program.sink.shown + other.sink.shown)
    assert sorted(shown.items()) == [(batch, expected(batch)) for batch in range(len(shown))]
    assert [batch for batch, _ in program.sink.shown] == sorted({batch for batch, _ in program.sink.shown})


def test_the_way_back_does_not_need_a_new_checkpoint_that_spark_cannot_read(
    spark: SparkSession, s3: S3Service, tmp_path: Path
) -> None:
    """It can be made in a place that Spark has no file system for, so the query cannot be started there."""
    program, refusals = Counting(spark, tmp_path, 2), list[str]()

    def start(checkpoint: str) -> Any:  # noqa: ANN401
        if checkpoint == new:
            with pytest.raises(StreamingQueryException) as told:
                program.start(program.checkpoint).awaitTermination(60)
            refusals.append(str(told.value))
        return program.start(checkpoint)

    new = s3.new_folder()
    with program.running() as query:
        program.await_more()
        with pytest.raises(ckpt.errors.RescaleError, match=r"started again on .*/query, with 2 partitions") as told:
            ckpt.rescale(query, start, 3, new_checkpoint=new, options=s3.options)
        assert "[StorageError] The query is not started on" in refusals[0]
        assert f"a rescaling between it and {new} began at" in refusals[0]
        assert "It is unknown whether the query goes on there, because that checkpoint cannot be read" in refusals[0]
        assert told.value.query is not None
        program.await_more()
    require_each_batch(program)


def test_a_state_server_commits_nothing_for_a_query_that_has_moved(spark: SparkSession, tmp_path: Path) -> None:
    """Even if its driver found that out too late."""
    program = Counting(spark, tmp_path, 2)

    def write(frame: DataFrame, batch: int) -> None:
        if batch == 2:
            record(program.checkpoint, f"file:{tmp_path}/new", 1767225600000)
        program.sink(frame, batch)

    program.write = write
    with program.running() as query, pytest.raises(StreamingQueryException, match=r"has taken its place|rescaled to"):
        query.awaitTermination(60)
    assert [batch for batch, _ in program.sink.shown][:2] == [0, 1]
