"""A running query that others want, too, while it is rescaled: other calls, other code, other drivers."""

from __future__ import annotations

import shutil
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.crash.processes import eventually
from integration.running.programs import Counting, require_each_batch
from integration.savepoints.test_running import batches
from pyspark_ckpt.queries.session_confs import find_session
from pyspark_ckpt.running import rescaling
from pyspark_ckpt.state_store.attempts.runs import RUN_FORMAT, Epochs, RunObject
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.retention.pins import Pins

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pyspark_ckpt.state_store.savepoints.restoring.request import Restored

pytestmark = pytest.mark.spark


def test_of_two_calls_at_once_one_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    program = Counting(spark, tmp_path, 2)
    refused: list[ckpt.CkptError] = []
    done: list[ckpt.moving.RescaledQuery] = []

    def call(partitions: int) -> None:
        try:
            done.append(ckpt.rescale(query, program.start, partitions))
        except ckpt.CkptError as told:
            refused.append(told)

    with program.running() as query:
        program.await_more()
        calls = [threading.Thread(target=call, args=(partitions,)) for partitions in (3, 4)]
        for each in calls:
            each.start()
        for each in calls:
            each.join()
        assert len(done) == len(refused) == 1
        program.await_more()
        assert [each.runId for each in program.session.streams.active] == [done[0].query.runId]
    program.require_all()


def test_a_query_that_other_code_starts_again_meanwhile_is_left_to_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a loop that starts every query that has ended."""
    program = Counting(spark, tmp_path, 2)
    started: list[StreamingQuery] = []

    def restore(checkpoint: str, new_checkpoint: str, *, parallelism: int, options: dict[str, str]) -> Restored:
        done = ckpt.restore(checkpoint, new_checkpoint, parallelism=parallelism, options=options)
        started.append(program.start(program.checkpoint))
        return done

    monkeypatch.setattr(rescaling, "restore", restore)
    with program.running() as query:
        program.await_more()
        with pytest.raises(
            ckpt.errors.RescaleError, match=r"Other code of this program has started it, and it was left"
        ) as told:
            ckpt.rescale(query, program.start, 3)
        assert told.value.query is not None
        assert told.value.query.runId == started[0].runId
        program.await_more()
        assert program.session.conf.get(SHUFFLE_PARTITIONS) == "2"
    program.require_all()
    assert [name for name, _ in program.calls] == ["query", "query"]


def test_other_code_that_starts_the_old_query_in_the_first_batch_does_not_go_unnoticed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark stops the new query then, because both have one id. Before both have the plan, it is refused."""
    program = Counting(spark, tmp_path, 2)
    holds, goes = threading.Event(), threading.Event()

    def write(frame: DataFrame, batch: int) -> None:
        if len(program.calls) == 2 and not holds.is_set():
            holds.set()
            goes.wait(20)
        program.sink(frame, batch)

    def start_old() -> None:
        assert holds.wait(60)
        planned = max(batches(tmp_path / "query-3-partitions", "offsets"))
        eventually("the plan", lambda: planned in batches(tmp_path / "query", "offsets"), 0.01)
        program.start(program.checkpoint)
        goes.set()

    program.write = write
    with program.running() as query:
        program.await_more()
        other = threading.Thread(target=start_old)
        other.start()
        with pytest.raises(ckpt.errors.RescaleError, match=r"was stopped by other code|was started meanwhile") as told:
            ckpt.rescale(query, program.start, 3)
        other.join()
        assert told.value.query is not None
        assert told.value.query.isActive
        program.await_more()
        assert [each.runId for each in program.session.streams.active] == [told.value.query.runId]
    require_each_batch(program)


def test_nothing_is_undone_when_another_driver_has_started_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """The other driver runs the first batch of the new query, which this one has begun. It needs that checkpoint."""
    program = Counting(spark, tmp_path, 2)
    new = tmp_path / "query-3-partitions"

    def write(frame: DataFrame, batch: int) -> None:
        if (new / "offsets" / str(batch)).exists():
            Epochs(LocalPlace(new)).take(RunObject(RUN_FORMAT, str(uuid.uuid4()), "app-2 on elsewhere"))
        program.sink(frame, batch)

    program.write = write
    with program.running() as query:
        program.await_more()
        with pytest.raises(ckpt.errors.RescaleError, match=r"goes on in the other driver.*app-2 on elsewhere") as told:
            ckpt.rescale(query, program.start, 3)
        assert told.value.query is None
        assert not program.session.streams.active
    assert (new / "metadata").exists()
    assert [name for name, _ in program.calls] == ["query", "query-3-partitions"]


def test_a_checkpoint_tells_where_its_query_went_whatever_the_number(spark: SparkSession, tmp_path: Path) -> None:
    program = Counting(spark, tmp_path, 2)
    with program.running() as query:
        program.await_more()
        done = ckpt.rescale(query, program.start, 3, new_checkpoint=tmp_path / "named")
        program.await_more()
        done.query.stop()
        with pytest.raises(InvalidInputError, match=r"was rescaled before, and has run on .*named since"):
            ckpt.rescale(program.checkpoint, program.start, 4)
        assert not (tmp_path / "query-4-partitions").exists()


def test_a_query_that_runs_although_start_returns_nothing_is_found(spark: SparkSession, tmp_path: Path) -> None:
    program = Counting(spark, tmp_path, 2)

    def start(checkpoint: str) -> StreamingQuery:
        program.start(checkpoint)
        return None  # type: ignore[return-value]  # as the return is forgotten

    with program.running() as query:
        program.await_more()
        with pytest.raises(
            ckpt.errors.RescaleError, match=r"It runs on file:.*/query, but `start` has failed there"
        ) as told:
            ckpt.rescale(query, start, 3)
        assert told.value.query is not None
        assert told.value.query.isActive
        program.await_more()
    assert [each for each, _ in program.calls] == ["query", "query-3-partitions", "query"]


def test_a_start_that_begins_anew_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    program = Counting(spark, tmp_path, 2)

    def start(checkpoint: str) -> StreamingQuery:
        if checkpoint.endswith("-partitions"):
            shutil.rmtree(checkpoint.removeprefix("file:"))
        return program.start(checkpoint)

    with program.running() as query:
        program.await_more()
        with pytest.raises(
            ckpt.errors.RescaleError, match=r"started query .* was to go on. .*was started again"
        ) as told:
            ckpt.rescale(query, start, 3)
        assert told.value.query is not None
        assert told.value.query.id == query.id


def test_a_query_cannot_be_rescaled_from_its_own_batch(spark: SparkSession, tmp_path: Path) -> None:
    program = Counting(spark, tmp_path, 2)
    refused: list[LifecycleError] = []

    def write(frame: DataFrame, batch: int) -> None:
        if batch == 2:
            with pytest.raises(LifecycleError, match="from its own function for foreachBatch") as told:
                ckpt.rescale(program.session.streams.active[0], program.start, 3)
            refused.append(told.value)
        program.sink(frame, batch)

    program.write = write
    with program.running():
        program.sink.await_batch(3)
    assert len(refused) == 1
    program.require_all()


def test_threads_without_a_session_find_that_of_the_process(spark: SparkSession) -> None:
    found: list[SparkSession | None] = []
    thread = threading.Thread(target=lambda: found.append(find_session()))
    thread.start()
    thread.join()
    assert found[0] is not None
    assert found[0].sparkContext is spark.sparkContext


def test_the_old_checkpoint_stays_while_it_is_copied(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Counting(spark, tmp_path, 2)
    with program.running() as query:
        program.await_more()
        Pins(LocalPlace(Path(program.checkpoint))).add(1, 600.0)  # as a savepoint does
        done = ckpt.rescale(query, program.start, 3, old_checkpoint="delete")
        assert not done.old_is_deleted
        assert "query was not deleted: it is being read or copied" in capsys.readouterr().err
        assert (tmp_path / "query" / "metadata").exists()


def test_an_interrupted_way_back_says_how_to_go_on(spark: SparkSession, tmp_path: Path) -> None:
    """By a second Ctrl-C."""
    program = Counting(spark, tmp_path, 2)

    def start(_checkpoint: str) -> StreamingQuery:
        raise KeyboardInterrupt

    with program.running() as query:
        program.await_more()
        with pytest.raises(KeyboardInterrupt) as interrupted:
            ckpt.rescale(query, start, 3)
        notes = " ".join(getattr(interrupted.value, "__notes__", ()))
        assert f"The way back was interrupted. If no query runs, call again with file:{program.checkpoint}" in notes
        assert program.session.conf.get(SHUFFLE_PARTITIONS) == "2"
        ckpt.rescale(program.checkpoint, program.start, 3)
        program.await_more()
    program.require_all()


def test_a_batch_that_a_file_sink_had_when_the_driver_died_runs_again(spark: SparkSession, tmp_path: Path) -> None:
    """The sink skips it, and the batch runs for its state."""
    inputs, output, new = tmp_path / "inputs", tmp_path / "output", tmp_path / "query-3-partitions"
    session = Counting(spark, tmp_path, 2).session
    inputs.mkdir()

    def put(number: int) -> None:
        (tmp_path / "new").write_text(f"{number}\n")
        (tmp_path / "new").rename(inputs / f"{number}.csv")

    def start(checkpoint: str) -> StreamingQuery:
        rows = session.readStream.schema("value int").csv(str(inputs)).dropDuplicates(["value"])
        writer = rows.writeStream.option("checkpointLocation", checkpoint).format("json")
        return writer.option("path", str(output)).start()

    try:
        put(1)
        query = start(str(tmp_path / "query"))
        query.processAllAvailable()
        query.stop()
        ckpt.restore(tmp_path / "query", new, parallelism=3)
        put(2)
        session.conf.set(SHUFFLE_PARTITIONS, "3")
        query = start(str(new))
        query.processAllAvailable()
        query.stop()
        (new / "commits" / "1").unlink()  # as if the driver had died before the commit
        (new / "commits" / ".1.crc").unlink(missing_ok=True)
        assert (output / "_spark_metadata" / "1").exists(), "the sink had the batch"
        done = ckpt.rescale(tmp_path / "query", start, 3)
        put(3)
        done.query.processAllAvailable()
    finally:
        for each in session.streams.active:
            each.stop()
    assert sorted(row.value for row in session.read.json(str(output)).collect()) == [1, 2, 3]
