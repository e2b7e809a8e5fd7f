"""Savepoints of queries that run: every row of the output counts once, wherever the query continues."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.providers import OURS, ROCKSDB
from pyspark_ckpt import savepoints
from pyspark_ckpt.jobs.spark_job import SparkJob
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from integration.operators.providers import Provider

ROWS = 20
USERS = 7
BUSY = {
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.stateStore.ckpt.snapshotEveryVersions": "2",
    "spark.sql.streaming.stateStore.ckpt.retentionGracePeriod": "0",
}


class Sink:
    """Keeps what each batch has shown, in order; a batch may be refused or held up."""

    def __init__(self) -> None:
        """Be empty."""
        self.shown: list[tuple[int, list[tuple[int, int, int]]]] = []
        self.refused = -1
        self.progress = threading.Condition()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Take a batch."""
        rows = sorted(map(tuple, frame.collect()))
        if batch == self.refused:
            raise RuntimeError("made-up failure of the sink")
        with self.progress:
            self.shown.append((batch, rows))
            self.progress.notify_all()

    def await_batch(self, batch: int) -> None:
        """Return when a batch is there."""
        with self.progress:
            assert self.progress.wait_for(lambda: bool(self.shown) and self.shown[-1][0] >= batch, 120)


def expected(batch: int) -> list[tuple[int, int, int]]:
    """What a batch shows: rows and sum of every user up to then."""
    seen = range((batch + 1) * ROWS)
    return sorted((user, len(seen[user::USERS]), sum(seen[user::USERS])) for user in range(USERS))


@contextmanager
def running(
    spark: SparkSession,
    checkpoint: Path,
    sink: Callable[..., None],
    partitions: int,
    interval: str = "0 seconds",
    provider: Provider = OURS,
) -> Iterator[StreamingQuery]:
    """A query that counts, as fast as it can or a batch each ``interval``."""
    source = spark.newSession()
    for key, value in {**BUSY, SHUFFLE_PARTITIONS: str(partitions)}.items():
        source.conf.set(key, value)
    session = provider.session(source, **BUSY, **{SHUFFLE_PARTITIONS: str(partitions)})
    rows = session.readStream.format("rate-micro-batch").options(rowsPerBatch=ROWS, numPartitions=1, startTimestamp=0)
    counted = rows.load().groupBy((f.col("value") % USERS).alias("user")).agg(f.count("*"), f.sum("value"))
    writer = counted.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint)).foreachBatch(sink)
    query = writer.trigger(processingTime=interval).start()
    try:
        yield query
    finally:
        query.stop()


def batches(checkpoint: Path, folder: str) -> list[int]:
    """The batches in a log of a checkpoint."""
    return sorted(int(path.name) for path in (checkpoint / folder).iterdir() if path.name.isdigit())


class SinkThatKeepsPlans(Sink):
    """Keeps the plan of each batch as well: the log of offsets has only the last few."""

    def __init__(self, checkpoint: Path) -> None:
        """Be empty."""
        super().__init__()
        self.checkpoint = checkpoint
        self.plans: dict[int, list[str]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Take a batch."""
        self.plans[batch] = read_plan(self.checkpoint, batch)
        super().__call__(frame, batch)


def read_plan(checkpoint: Path, batch: int) -> list[str]:
    """The lines of a batch in the log of offsets."""
    return (checkpoint / "offsets" / str(batch)).read_text().splitlines()


def goes_on(
    spark: SparkSession,
    saved: Path,
    to: Path,
    partitions: int,
    first: int,
    **more: Any,  # noqa: ANN401
) -> list[str]:
    """Restore; fail unless the next batches show what they would have shown anyhow; return the plan of the first."""
    savepoints.restore(f"file:{saved}", f"file:{to}", parallelism=partitions, **more)
    sink = SinkThatKeepsPlans(to)
    with running(spark, to, sink, partitions):
        sink.await_batch(first + 2)
    assert sink.shown[:3] == [(batch, expected(batch)) for batch in range(first, first + 3)]
    return sink.plans[first]


def test_a_savepoint_of_a_busy_query_goes_on_elsewhere_while_the_query_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    tmp_path /= "day=2024-01-01 10%3A00"  # for Spark, a percent sign is part of a name
    sink = Sink()
    with running(spark, tmp_path / "query", sink, 2) as query:
        sink.await_batch(4)
        infos = [savepoints.savepoint(query, str(tmp_path / f"taken-{number}")) for number in range(2)]
        sink.await_batch(infos[-1].version + 3)
        taken = [batch for batch, _ in sink.shown]
    assert sink.shown == [(batch, expected(batch)) for batch in range(len(sink.shown))]
    assert infos[0].version - 1 in taken
    assert infos[0].version <= infos[1].version
    assert not list((tmp_path / "query" / "_ckpt" / "pins").glob("*.pin")), "nothing is held any more"
    assert infos[0].version - 1 not in batches(tmp_path / "query", "commits"), "the query has deleted these logs"
    for number, (info, partitions) in enumerate(zip(infos, (3, 2), strict=True)):
        goes_on(spark, tmp_path / f"taken-{number}", tmp_path / f"restored-{number}", partitions, info.version)


@pytest.mark.parametrize("last", range(1, 6))
def test_the_sink_has_what_the_savepoint_stands_for_when_a_query_is_stopped_with_it(
    spark: SparkSession, tmp_path: Path, last: int
) -> None:
    """Whatever the query is about: a batch is planned, runs or is committed."""
    sink = Sink()
    with running(spark, tmp_path / "query", sink, 2) as query:
        sink.await_batch(last)
        time.sleep(last * 0.04)
        info = savepoints.stop_with_savepoint(query, str(tmp_path / "taken"))
        assert not query.isActive
        assert query.exception() is None
        with pytest.raises(LifecycleError, match="is no longer running"):
            savepoints.stop_with_savepoint(query, str(tmp_path / "again"))
    assert sink.shown == [(batch, expected(batch)) for batch in range(info.version)]
    assert batches(tmp_path / "query", "offsets")[-1] == info.version - 1, "no batch was planned after it"
    if last == 1:
        goes_on(spark, tmp_path / "taken", tmp_path / "restored", 4, info.version, query_id="new")


def test_a_query_whose_batch_takes_too_long_is_interrupted_and_runs_it_again_after_a_restore(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink, waits, goes = Sink(), threading.Event(), threading.Event()

    def slow(frame: DataFrame, batch: int) -> None:
        if batch == 2:
            waits.set()
            goes.wait()
        sink(frame, batch)

    with running(spark, tmp_path / "query", slow, 2) as query:
        assert waits.wait(120)
        stopping = threading.Timer(3, goes.set)
        stopping.start()
        info = savepoints.stop_with_savepoint(query, str(tmp_path / "taken"), timeout_s=1)
        stopping.join()
    assert (info.version, batches(tmp_path / "taken", "offsets")) == (2, [0, 1, 2])
    goes_on(spark, tmp_path / "taken", tmp_path / "restored", 2, 2)


def test_a_query_with_state_of_another_provider_is_not_stopped_for_nothing(spark: SparkSession, tmp_path: Path) -> None:
    sink = Sink()
    with running(spark, tmp_path / "query", sink, 2, provider=ROCKSDB) as query:
        sink.await_batch(1)
        for taken in (savepoints.stop_with_savepoint, savepoints.savepoint):
            with pytest.raises(InvalidInputError, match=r"keeps its state in .*RocksDBStateStoreProvider, not in pysp"):
                taken(query, str(tmp_path / "taken"))
        assert query.isActive
        sink.await_batch(sink.shown[-1][0] + 2)


def test_a_query_that_waits_for_its_next_trigger_is_not_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    sink = Sink()
    with running(spark, tmp_path / "query", sink, 2, "1000 days") as query:
        sink.await_batch(0)
        began = time.monotonic()
        info = savepoints.stop_with_savepoint(query, str(tmp_path / "taken"))
        assert time.monotonic() - began < savepoints.STOP_TIMEOUT_S
    assert (info.version, sink.shown) == (1, [(0, expected(0))])
    assert batches(tmp_path / "query", "offsets") == [0]


def test_a_batch_that_its_sink_has_refused_runs_again_with_the_same_rows_after_a_restore(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = Sink()
    sink.refused = 3
    with (
        running(spark, tmp_path / "query", sink, 2) as query,
        pytest.raises(StreamingQueryException, match="made-up failure"),
    ):
        query.awaitTermination()
    info = savepoints.savepoint(str(tmp_path / "query"), str(tmp_path / "taken"))
    assert (info.version, batches(tmp_path / "taken", "offsets")) == (3, [1, 2, 3])
    again = goes_on(spark, tmp_path / "taken", tmp_path / "restored", 1, 3)
    assert read_plan(tmp_path / "query", 3)[2:] == again[2:]
    assert json.loads(again[1])["conf"][SHUFFLE_PARTITIONS] == "1"


def test_an_error_that_may_pass_is_raised_as_it_was_when_no_attempt_is_left(spark: SparkSession) -> None:
    class Unlucky:
        key = "unlucky"

        def __call__(self) -> None:
            raise StorageError("The place did not answer.", hint="Look at its network.")

    with pytest.raises(StorageError, match="did not answer") as failed:
        SparkJob(spark, "in vain", 0)([Unlucky()], lambda _done, _of: None)
    assert failed.value.hint == "Look at its network."
