"""Entries of Spark's logs as this package writes them, and the epochs of the runs that write them."""

from __future__ import annotations

import filecmp
import re
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from integration.crash.driver import FORMAT, Driver
from integration.crash.faults import FORMATS
from integration.crash.processes import eventually
from integration.crash.reference import order, read_output
from integration.ha.places import s3_place
from integration.ha.stops import jars
from tests.faults.faulty_s3 import Faults, proxy
from tests.services.s3_server import S3Service

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ENTRY = re.compile(r"/(offsets|commits|runs)/[0-9]+(\.run)?\Z")
EPOCH = "spark.sql.streaming.ckpt.epoch"

pytestmark = pytest.mark.spark


@pytest.mark.in_turn
def test_each_run_has_the_next_epoch_and_a_sink_can_read_it(spark: SparkSession, tmp_path: Path) -> None:
    epochs: list[str | None] = []

    def write(rows: DataFrame, _batch: int) -> None:
        epochs.append(rows.sparkSession.conf.get(EPOCH))
        rows.collect()

    for number in range(3):
        (tmp_path / "input").mkdir(exist_ok=True)
        (tmp_path / "input" / f"{number}.txt").write_text("a\n", encoding="utf-8")
        lines = spark.readStream.text(str(tmp_path / "input"))
        writer = lines.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(write)
        writer.trigger(availableNow=True).start().awaitTermination()
    assert epochs == ["1", "2", "3"]
    runs = sorted(path.name for path in (tmp_path / "checkpoint" / "_ckpt" / "runs").iterdir())
    assert runs == [f"000000000{number}.run" for number in (1, 2, 3)]
    assert not list((tmp_path / "checkpoint").rglob("*.tmp"))


def rate(session: SparkSession) -> DataStreamWriter:
    return session.readStream.format("rate").load().writeStream.format("noop")


def await_commits(checkpoint: Path, more: int = 1) -> None:
    """Return when a query has committed ``more`` batches."""
    before = len(list(checkpoint.glob("commits/[0-9]*")))
    eventually("commits", lambda: len(list(checkpoint.glob("commits/[0-9]*"))) >= before + more, 0.1)


def epochs_of(checkpoint: Path) -> list[str]:
    return sorted(path.name for path in checkpoint.glob("_ckpt/runs/??????????.run"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def put_successor(checkpoint: Path) -> None:
    (checkpoint / "_ckpt" / "runs" / "0000000002.run").write_text('{"run_id":"next","driver":"its"}', encoding="utf-8")


@pytest.mark.parametrize("there", ["another", "restored", "nothing"])
def test_a_query_leaves_alone_what_is_in_the_place_of_its_checkpoint(
    there: str, spark: SparkSession, tmp_path: Path
) -> None:
    other, checkpoint = tmp_path / "other", tmp_path / "checkpoint"
    query = rate(spark).option("checkpointLocation", str(other)).start()
    await_commits(other)
    query.stop()
    if there == "restored":
        shutil.rmtree(other / "_ckpt" / "runs")

    def write(rows: DataFrame, batch: int) -> None:
        rows.collect()
        if batch == 4:
            shutil.rmtree(checkpoint)
            if there != "nothing":
                shutil.copytree(other, checkpoint)

    query = rate(spark).option("checkpointLocation", str(checkpoint)).foreachBatch(write).start()
    with pytest.raises(StreamingQueryException, match=r"Run 1 of the query is over: .*0000000001\.run is gone, or is"):
        query.awaitTermination(60)
    if there == "nothing":
        assert not checkpoint.exists()
    else:
        assert not filecmp.dircmp(other, checkpoint).diff_files
        for log in ("offsets", "commits"):
            assert names(other / log) == names(checkpoint / log)


def test_queries_have_epochs_after_one_was_stopped_while_it_took_its_own(spark: SparkSession, tmp_path: Path) -> None:
    runs = tmp_path / "stopped" / "_ckpt" / "runs"
    runs.mkdir(parents=True)
    for number in range(10_000):  # a listing takes a second
        (runs / f"foreign-{number}").touch()
    stopped: list[str] = []

    def stop() -> None:
        eventually("a query", lambda: bool(spark.streams.active), 0.01)
        for query in spark.streams.active:
            query.stop()
            stopped.append(query.id)

    thread = threading.Thread(target=stop)
    thread.start()
    rate(spark).option("checkpointLocation", str(tmp_path / "stopped")).start()
    thread.join()
    assert stopped
    query = rate(spark).option("checkpointLocation", str(tmp_path / "next")).start()
    query.stop()
    assert epochs_of(tmp_path / "next") == ["0000000001.run"]


def test_a_query_has_an_epoch_when_another_query_starts_it(spark: SparkSession, tmp_path: Path) -> None:
    started: dict[str, StreamingQuery] = {}

    def write(rows: DataFrame, _batch: int) -> None:
        rows.collect()
        if not started:
            for name, session in (("same", rows.sparkSession), ("new", spark.newSession())):
                started[name] = rate(session).option("checkpointLocation", str(tmp_path / name)).start()

    outer = rate(spark).option("checkpointLocation", str(tmp_path / "outer")).foreachBatch(write).start()
    eventually("queries", lambda: len(started) == 2 or not outer.isActive, 0.1)
    for name, query in started.items():
        await_commits(tmp_path / name)
        query.stop()
        assert epochs_of(tmp_path / name) == ["0000000001.run"]
    outer.stop()


def test_a_query_with_a_continuous_trigger_ends_when_it_has_a_successor(spark: SparkSession, tmp_path: Path) -> None:
    query = rate(spark).option("checkpointLocation", str(tmp_path)).trigger(continuous="1 second").start()
    await_commits(tmp_path)
    put_successor(tmp_path)
    with pytest.raises(StreamingQueryException, match=r"Run 1 .* is over: run 2 \(run id next, driver its\)"):
        query.awaitTermination(60)


@pytest.mark.matrix
@pytest.mark.parametrize("fault", ["no_answer", "conflict"])
def test_a_query_goes_on_when_requests_for_its_entries_fail(fault: str, s3: S3Service, tmp_path: Path) -> None:
    lost: set[str] = set()
    current = threading.local()

    def note(method: str, path: str) -> None:
        current.loses = method == "PUT" and ENTRY.search(path) is not None and path not in lost
        if current.loses:
            lost.add(path)

    faults = Faults(next=lambda _method, _number: fault if current.loses else None, before=note)
    place = s3_place(s3)
    with proxy(s3.endpoint, faults) as endpoint:
        conf = {**place.conf, "spark.hadoop.fs.s3a.endpoint": endpoint}
        conf["spark.jars"] = ",".join([jars(tmp_path / "holding"), *place.jars])
        with Driver(tmp_path, conf=conf, program="integration.ha.program") as driver:
            runs = [
                order("windows", tmp_path / str(each), checkpoint=f"{place.url}/{each}", conf={FORMAT: str(each)})
                for each in FORMATS
            ]
            assert driver.order("outcomes", runs=[*runs, order("windows", tmp_path / "calm")]) == ["", "", ""]
    assert len(lost) == len(FORMATS) * (1 + 7 + 6)  # a number; the offsets of a batch more than were committed
    for each in FORMATS:
        assert read_output(tmp_path / str(each) / "windows") == read_output(tmp_path / "calm" / "windows")
