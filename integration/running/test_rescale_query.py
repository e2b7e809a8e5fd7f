"""A running query that is rescaled in one call: every row counts once, and whatever fails, a query runs again."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.providers import ROCKSDB
from integration.running.programs import Counting, require_each_batch
from integration.savepoints.test_running import ROWS, USERS, batches
from pyspark_ckpt.queries.last_batch import let_end
from pyspark_ckpt.queries.progress import read_progress
from pyspark_ckpt.running import first_commit, rescaling
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark


def test_every_row_counts_once_when_a_query_is_rescaled_there_and_back(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Counting(spark, tmp_path, 2)
    with program.running() as query:
        program.await_more()
        advice = ckpt.monitoring.advise(query)
        assert (advice.partitions, advice.cores) == (2, 2)
        done = ckpt.rescale(query, program.start, 5)
        assert (done.partitions, done.old_partitions, done.query.isActive) == (5, 2, True)
        assert done.checkpoint == f"file:{tmp_path}/query-5-partitions"
        assert done.downtime.first_batch_s is not None
        assert str(done.downtime) in capsys.readouterr().err
        program.await_more()
        back = ckpt.rescale(done.query, program.start, 2, old_checkpoint="delete")
        assert back.checkpoint == f"file:{tmp_path}/query-2-partitions"
        assert back.old_is_deleted
        assert not any(path.is_file() for path in (tmp_path / "query-5-partitions").rglob("*"))
        program.await_more()
        again = ckpt.rescale(back.query, program.start, 5, new_checkpoint=tmp_path / "named")
        assert again.checkpoint == str(tmp_path / "named")
        program.await_more()
    program.require_all()
    assert program.calls == [("query", "2"), ("query-5-partitions", "5"), ("query-2-partitions", "2"), ("named", "5")]
    assert program.session.conf.get(SHUFFLE_PARTITIONS) == "5"


def test_the_query_runs_again_on_its_old_checkpoint_if_it_cannot_be_started_on_the_new_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    program = Counting(spark, tmp_path, 2)

    def start(checkpoint: str) -> StreamingQuery:
        query = program.start(checkpoint)
        if checkpoint.endswith("-partitions"):  # after the query has begun: it must not run on
            raise RuntimeError("made-up mistake")
        return query

    with program.running() as query:
        program.await_more()
        with pytest.raises(
            ckpt.errors.RescaleError, match=r"made-up mistake.*started again on .*query, with 2 part"
        ) as failed:
            ckpt.rescale(query, start, 4)
        assert failed.value.query is not None
        assert program.session.conf.get(SHUFFLE_PARTITIONS) == "2"
        program.await_more()
        assert [each.id for each in program.session.streams.active] == [query.id]
        ckpt.rescale(failed.value.query, program.start, 4)
        program.await_more()
    require_each_batch(program)
    *_, (failed_on, _), back, (folder, partitions) = program.calls
    assert (failed_on, back, partitions) == ("query-4-partitions", ("query", "2"), "4")
    # A task that outlives its query may write into the deleted folder; then the folder is not taken again.
    assert folder in ("query-4-partitions", "query-4-partitions-2")


def test_a_program_that_starts_another_checkpoint_is_stopped_and_goes_on_with_the_old_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    program = Counting(spark, tmp_path, 2)
    with program.running() as query:
        program.await_more()
        with pytest.raises(
            ckpt.errors.RescaleError, match=r"was given .*-3-partitions, but started a query on .*/query,"
        ):
            ckpt.rescale(query, lambda _checkpoint: program.start(program.checkpoint), 3)
        program.await_more()
        elsewhere = str(tmp_path / "elsewhere")
        running = program.session.streams.active[0]
        with pytest.raises(ckpt.errors.RescaleError, match="could not be started again, either") as failed:
            ckpt.rescale(running, lambda _checkpoint: program.start(elsewhere), 3)
        assert failed.value.query is None
        assert f"Start the query on file:{program.checkpoint}, with {SHUFFLE_PARTITIONS}=2." in str(failed.value)
        assert not program.session.streams.active


def test_nothing_is_lost_in_a_file_sink_if_the_first_batch_fails_after_it(spark: SparkSession, tmp_path: Path) -> None:
    """A file sink skips a batch that its own log has: the old query must run that batch with the same rows."""
    inputs, output = tmp_path / "inputs", tmp_path / "output"
    had: list[bool] = []
    inputs.mkdir()
    session = Counting(spark, tmp_path, 2).session

    def put(number: int) -> None:
        (tmp_path / "new").write_text(f"{number}\n")
        (tmp_path / "new").rename(inputs / f"{number}.csv")

    def start(checkpoint: str) -> StreamingQuery:
        new = Path(checkpoint.removeprefix("file:"))
        rows = session.readStream.schema("value int").csv(str(inputs)).dropDuplicates(["value"])
        writer = rows.writeStream.option("checkpointLocation", checkpoint).format("json")
        query = writer.option("path", str(output)).start()
        if new.name == "query-3-partitions":
            put(2)
            query.processAllAvailable()
            query.stop()
            (new / "commits" / "1").unlink()  # as if it had failed before the commit
            (new / "commits" / ".1.crc").unlink(missing_ok=True)
            had.append((output / "_spark_metadata" / "1").exists())
            put(3)  # the old query finds one file more
            raise RuntimeError("made-up mistake")
        return query

    put(1)
    query = start(str(tmp_path / "query"))
    try:
        query.processAllAvailable()
        with pytest.raises(ckpt.errors.RescaleError, match=r"made-up mistake.* was started again") as failed:
            ckpt.rescale(query, start, 3)
        assert had == [True], "the sink had the batch"
        assert failed.value.query is not None
        failed.value.query.processAllAvailable()
        assert batches(tmp_path / "query", "commits") == [0, 1, 2]
        assert not (tmp_path / "query-3-partitions" / "metadata").exists()
    finally:
        for each in session.streams.active:
            each.stop()
    assert sorted(row.value for row in session.read.json(str(output)).collect()) == [1, 2, 3]


def test_a_batch_that_does_not_end_in_time_runs_on(spark: SparkSession, tmp_path: Path) -> None:
    program = Counting(spark, tmp_path, 2)
    holds, goes = threading.Event(), threading.Event()

    def write(frame: DataFrame, batch: int) -> None:
        if batch == 2:
            holds.set()
            goes.wait(60)
        program.sink(frame, batch)

    program.write = write
    with program.running() as query:
        assert holds.wait(120)
        with pytest.raises(LifecycleError, match=r"has not ended within 0.2 s. Nothing was done: the query runs on"):
            ckpt.rescale(query, program.start, 3, timeout_s=0.2)
        goes.set()
        program.await_more(3)
        assert query.isActive
    program.require_all()
    assert not (tmp_path / "query-3-partitions").exists()


def test_what_cannot_be_rescaled_is_refused_while_the_query_runs(spark: SparkSession, tmp_path: Path) -> None:
    program = Counting(spark, tmp_path, 2)
    full = tmp_path / "full"
    full.mkdir()
    (full / "a file").touch()
    with program.running() as query:
        program.await_more()
        wrongs: dict[str, dict[str, object]] = {
            "already has 2 partitions": {"parallelism": 2},
            "must be a whole number": {"parallelism": 0},
            "`start` must be a function": {"start": "program.start"},
            "must be 'keep' or 'delete'": {"old_checkpoint": "drop"},
            "`timeout_s` must be a number of seconds": {"timeout_s": "10"},
            "`first_batch_timeout_s` must be a number": {"first_batch_timeout_s": -1},
            "cannot be the new checkpoint: it has a file": {"new_checkpoint": full},
            "is inside": {"new_checkpoint": tmp_path / "query" / "new"},
            "There is no option": {"options": {"remoote": "/x"}},
        }
        for wrong, arguments in wrongs.items():
            given: dict[str, object] = {"start": program.start, "parallelism": 3, **arguments}
            with pytest.raises(InvalidInputError, match=wrong):
                ckpt.rescale(query, **given)  # type: ignore[arg-type]
        with pytest.raises(LifecycleError, match="Call with the query that runs"):
            ckpt.rescale(program.checkpoint, program.start, 3)
        (tmp_path / "query" / "mine").touch()
        with pytest.raises(InvalidInputError, match="has mine, which does not belong to a checkpoint"):
            ckpt.rescale(query, program.start, 3, old_checkpoint="delete")
        program.await_more()
        assert query.isActive
    program.require_all()


def test_queries_that_are_not_of_this_store_or_cannot_start_again_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    program = Counting(spark, tmp_path, 2, ROCKSDB)
    with program.running() as query:
        program.await_more()
        with pytest.raises(InvalidInputError, match=r"keeps its state in .*RocksDBStateStoreProvider"):
            ckpt.rescale(query, program.start, 3)
        assert query.isActive
    rows = program.session.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    stateless = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "stateless")).start()
    temporary = rows.writeStream.format("noop").start()
    in_memory = rows.dropDuplicates(["value"]).writeStream.format("memory").queryName("shown").start()
    for each, wrong in ((stateless, "has no state"), (temporary, "is temporary"), (in_memory, "memory sink, which")):
        while not any(progress["numInputRows"] for progress in read_progress(each)):
            threading.Event().wait(0.05)
        with pytest.raises(InvalidInputError, match=wrong):
            ckpt.rescale(each, program.start, 3)
        assert each.isActive
        each.stop()


@pytest.fixture
def _repeated_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send SIGINT again when Python has lost it: it ignores what is raised while an object of py4j is collected."""
    hook = sys.unraisablehook

    def repeat(lost: sys.UnraisableHookArgs) -> None:
        if isinstance(lost.exc_value, KeyboardInterrupt):
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            hook(lost)

    monkeypatch.setattr(sys, "unraisablehook", repeat)


@pytest.mark.usefixtures("_repeated_interrupts")
@pytest.mark.parametrize("when", ["while the batch runs", "in start", "in the first batch"])
def test_the_query_runs_when_the_call_is_interrupted(
    when: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Ctrl-C, on which PySpark cancels all jobs, too."""
    program = Counting(spark, tmp_path, 2)
    holds, goes, held = threading.Event(), threading.Event(), threading.Event()

    def interrupt() -> None:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    def let_end_and_interrupt(*given: Any) -> Any:  # noqa: ANN401
        interrupt()
        threading.Timer(2, goes.set).start()
        return let_end(*given)

    def write(frame: DataFrame, batch: int) -> None:
        if holds.is_set() and not held.is_set():
            held.set()
            if when == "in the first batch":
                interrupt()
            goes.wait(20)
        program.sink(frame, batch)

    def start(checkpoint: str) -> StreamingQuery:
        if when == "in start" and checkpoint.endswith("-partitions"):
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(20)
        if when == "in the first batch" and checkpoint.endswith("-partitions"):
            holds.set()
        return program.start(checkpoint)

    program.write = write
    with program.running() as query:
        program.await_more()
        if when == "while the batch runs":
            holds.set()
            assert held.wait(60)
            monkeypatch.setattr(rescaling, "let_end", let_end_and_interrupt)
        else:
            threading.Timer(2, goes.set).start()
        with pytest.raises(KeyboardInterrupt) as interrupted:
            ckpt.rescale(query, start, 3)
        notes = " ".join(getattr(interrupted.value, "__notes__", ()))
        assert "was started again on" in notes or (when == "while the batch runs" and "runs on" in notes)
        goes.set()
        program.await_more()
        assert [each.id for each in program.session.streams.active] == [query.id]
    require_each_batch(program)


def test_a_stopped_query_and_an_interrupted_rescaling_go_on(spark: SparkSession, tmp_path: Path) -> None:
    program = Counting(spark, tmp_path, 2)
    with program.running() as query:
        program.await_more()
        query.stop()
        ckpt.restore(program.checkpoint, tmp_path / "query-4-partitions", parallelism=4)
        done = ckpt.rescale(program.checkpoint, program.start, 4)
        assert (done.restored, Path(done.checkpoint).name) == (None, "query-4-partitions")
        program.await_more()
        done.query.stop()
        with pytest.raises(InvalidInputError, match=r"was rescaled before, and has run on .*-4-partitions since"):
            ckpt.rescale(program.checkpoint, program.start, 4)
        back = ckpt.rescale(done.query, program.start, 3)
        program.await_more()
        assert back.query.isActive
    program.require_all()


def test_a_query_that_reads_what_is_available_goes_on_with_it(spark: SparkSession, tmp_path: Path) -> None:
    inputs, session = tmp_path / "inputs", Counting(spark, tmp_path, 2).session
    inputs.mkdir()
    shown: dict[int, list[tuple[str, int]]] = {}
    holds, goes = threading.Event(), threading.Event()
    for number in range(6):
        (inputs / f"{number}.csv").write_text("a\nb\n")

    def write(frame: DataFrame, batch: int) -> None:
        if batch == 1:
            holds.set()
            goes.wait(60)
        shown[batch] = sorted(map(tuple, frame.collect()))

    def start(checkpoint: str) -> StreamingQuery:
        rows = session.readStream.schema("user string").option("maxFilesPerTrigger", 1).csv(str(inputs))
        counted = rows.groupBy("user").agg(f.count("*"))
        writer = counted.writeStream.outputMode("update").option("checkpointLocation", checkpoint)
        return writer.foreachBatch(write).trigger(availableNow=True).start()

    query = start(str(tmp_path / "query"))
    assert holds.wait(120)
    threading.Timer(0.5, goes.set).start()
    done = ckpt.rescale(query, start, 3)
    done.query.awaitTermination()
    assert batches(tmp_path / "query", "commits") == [0, 1]
    assert shown == {batch: [("a", batch + 1), ("b", batch + 1)] for batch in range(6)}
    ended = ckpt.rescale(done.query, start, 2)
    assert ended.downtime.first_batch_s is None, "there was nothing to read"
    assert "no data" in repr(ended)


@pytest.mark.parametrize("interval", ["0 seconds", "5 milliseconds"])
def test_a_query_without_data_is_not_waited_for_and_its_old_checkpoint_stays(
    interval: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it asks its source for data all the time."""
    monkeypatch.setattr(first_commit, "IDLE_S", 0.5)
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "1.csv").write_text("a\n")
    session = Counting(spark, tmp_path, 2).session

    def start(checkpoint: str) -> StreamingQuery:
        rows = session.readStream.schema("user string").csv(str(tmp_path / "inputs")).groupBy("user").count()
        writer = rows.writeStream.outputMode("complete").option("checkpointLocation", checkpoint)
        return writer.format("noop").trigger(processingTime=interval).start()

    query = start(str(tmp_path / "query"))
    query.processAllAvailable()
    done = ckpt.rescale(query, start, 3, old_checkpoint="delete", first_batch_timeout_s=60)
    try:
        assert (done.downtime.first_batch_s, done.old_is_deleted) == (None, False)
        assert (tmp_path / "query" / "metadata").exists()
    finally:
        done.query.stop()


def test_several_keyed_operators_get_the_new_number_and_a_program_that_sets_another_goes_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    program = Counting(spark, tmp_path, 2)
    session, totals = program.session, dict[int, tuple[int, int]]()
    is_wrong = threading.Event()

    class Count(ckpt.KeyedProcessor):
        seen = ckpt.ValueState("seen", "long", default=0)

        def process(self, ctx: Any, key: Any, rows: Sequence[Any]) -> Iterator[tuple[int, int]]:  # noqa: ANN401, ARG002
            self.seen.update(self.seen.value() + len(rows))
            yield key.user, self.seen.value()

    def start(checkpoint: str) -> StreamingQuery:
        if is_wrong.is_set() and checkpoint.endswith("-4-partitions"):
            session.conf.set(SHUFFLE_PARTITIONS, "7")
        rows = session.readStream.format("rate-micro-batch").options(rowsPerBatch=ROWS, startTimestamp=0).load()
        rows = rows.select((f.col("value") % USERS).cast("long").alias("user"), "value").dropDuplicates(["value"])
        first = ckpt.keyed(rows, by="user", uid="first").process(Count(), output="user long, n long", mode="append")
        again = ckpt.keyed(first, by="user", uid="again").process(Count(), output="user long, n long", mode="update")
        writer = again.writeStream.outputMode("update").option("checkpointLocation", checkpoint)
        return writer.foreachBatch(take).start()

    def take(frame: DataFrame, batch: int) -> None:
        totals.update({row.user: (batch, row.n) for row in frame.collect()})

    query = start(program.checkpoint)
    try:
        await_batch(query, 1)
        done = ckpt.rescale(query, start, 3)
        assert done.restored is not None
        await_batch(done.query, done.restored.version + 2)
        assert len(list((tmp_path / "query-3-partitions" / "state" / "1").iterdir())) == 4, "three, and its metadata"
        is_wrong.set()
        with pytest.raises(
            ckpt.errors.RescaleError, match=r"first batch .*has failed.*was started again on .*3 part"
        ) as failed:
            ckpt.rescale(done.query, start, 4)
        assert failed.value.query is not None
        await_batch(failed.value.query, done.restored.version + 4)
    finally:
        for each in session.streams.active:
            each.stop()
    assert {n for _, n in totals.values()} <= {batch + 1 for batch, _ in totals.values()}
    assert len(totals) == USERS


def await_batch(query: StreamingQuery, batch: int) -> None:
    """Return when a query has committed a batch."""
    pause = threading.Event()
    while not any(progress["batchId"] >= batch for progress in read_progress(query)):
        assert query.isActive, query.exception()
        pause.wait(0.05)


def test_state_apart_from_its_checkpoint_needs_another_folder(spark: SparkSession, tmp_path: Path) -> None:
    program = Counting(spark, tmp_path, 2)
    remote = "spark.sql.streaming.stateStore.ckpt.remote"
    program.session.conf.set(remote, str(tmp_path / "remote"))
    with program.running() as query:
        program.await_more()
        with pytest.raises(InvalidInputError, match="whose query has the same id"):
            ckpt.rescale(query, program.start, 3)
        assert query.isActive
        options = {"remote": str(tmp_path / "other")}
        with pytest.raises(InvalidInputError, match="which would not be deleted with it"):
            ckpt.rescale(query, program.start, 3, options=options, old_checkpoint="delete")
        ckpt.rescale(query, program.start, 3, options=options)
        assert program.session.conf.get(remote) == str(tmp_path / "other")
        program.await_more()
    program.require_all()
