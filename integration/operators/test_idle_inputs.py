"""Inputs that do not count for the watermark while they are idle: joins, windows, keyed timers, restarts, restores."""

from __future__ import annotations

import json
import shutil
import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.idle_plays import Play, minutes, wait_for
from integration.operators.idle_queries import (
    START,
    counted,
    idle,
    in_deduplication,
    in_outer_join,
    in_timers,
    in_union,
)
from integration.operators.providers import HDFS_BACKED
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PLACES = {
    "union": (in_union, [("a", "00:00", 1), ("b", "00:00", 1)]),
    "outer join": (in_outer_join, [("a", "00:00", None)]),
    "timers": (in_timers, [("a", "00:10", 1), ("b", "00:15", 1)]),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("place", PLACES)
def test_an_idle_input_holds_up_no_windows_joins_and_timers(spark: SparkSession, tmp_path: Path, place: str) -> None:
    query, expected = PLACES[place]
    play = Play(spark, tmp_path, query)
    assert play.run([("a", 0)], [("b", 5)]) == 0
    assert play.run([("a", 30)], []) == 5, "not idle yet, and a restart has kept where it was"
    play.take()
    play.let_an_hour_pass()
    assert play.run([("a", 31)], []) == 31
    assert play.take() == expected
    assert play.run([("a", 60)], []) == 60, "a restart does not end the silence"
    play.take()
    assert play.run([("a", 90)], [("b", 61), ("late", 20)]) == 61, "the next row counts at once"
    assert not [row for row in play.take() if row[0] == "late"]
    assert play.run([("a", 120)], []) == 61, "and the silence begins anew"


def test_deduplication_forgets_keys_while_an_input_is_idle(spark: SparkSession, tmp_path: Path) -> None:
    play = Play(spark, tmp_path, in_deduplication)
    play.run([("a", 0)], [("b", 5)])
    play.let_an_hour_pass()
    assert play.run([("c", 30)], []) == 30
    play.take()
    play.run([("a", 31)], [])
    assert play.take() == [("a", "00:31", 1)]


def test_it_works_with_spark_s_own_store(spark: SparkSession, tmp_path: Path) -> None:
    play = Play(spark, tmp_path, in_union, provider=HDFS_BACKED)
    play.run([("a", 0)], [("b", 5)])
    play.let_an_hour_pass()
    assert play.run([("a", 30)], []) == 30


def test_an_input_that_never_had_a_row_becomes_idle(spark: SparkSession, tmp_path: Path) -> None:
    play = Play(spark, tmp_path, in_union)
    assert play.run([("a", 10)], []) == (datetime(1970, 1, 1, tzinfo=timezone.utc) - START) // timedelta(minutes=1)
    play.let_an_hour_pass()
    assert play.run([("a", 30)], []) == 30


def test_inputs_that_are_all_idle_leave_the_watermark_where_it_is(spark: SparkSession, tmp_path: Path) -> None:
    play = Play(spark, tmp_path, lambda left, right: counted(idle(left, "2 seconds").union(idle(right, "2 seconds"))))
    play.give([("a", 30)], [("b", 5)])
    query = play.start(processingTime="0 seconds")
    try:
        wait_for(query, 5)
        time.sleep(3)
        assert minutes(query) == 5
        play.give([("a", 40)], [])
        wait_for(query, 40)
    finally:
        query.stop()


def test_the_watermark_moves_although_nothing_arrives(spark: SparkSession, tmp_path: Path) -> None:
    play = Play(spark, tmp_path, lambda left, right: counted(idle(left).union(idle(right, "4 seconds"))))
    play.give([("a", 30)], [("b", 5)])
    query = play.start(processingTime="0 seconds")
    try:
        wait_for(query, 30)
        assert play.take() == [("b", "00:00", 1)]
    finally:
        query.stop()


def test_the_last_to_become_idle_counts_however_late_that_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    play = Play(spark, tmp_path, in_union)
    assert play.run([("a", 30)], [("b", 5)]) == 5
    assert play.run([("a", 40)], []) == 5
    play.let_an_hour_pass()
    query = play.start(processingTime="0 seconds")
    try:
        time.sleep(1)  # it finds nothing, and does not run a batch
        play.give([], [("b", 6)])
        wait_for(query, 40)
        assert play.take() == [("a", "00:30", 1), ("b", "00:00", 2)], "late is what the batch before says"
    finally:
        query.stop()


def in_union_of_spark(left: DataFrame, right: DataFrame) -> DataFrame:
    return counted(left.withWatermark("at", "0 seconds").union(right.withWatermark("at", "0 seconds")))


def test_without_idle_after_nothing_changes(spark: SparkSession, tmp_path: Path) -> None:
    play = Play(spark, tmp_path, in_union_of_spark)
    play.run([("a", 0)], [("b", 5)])
    assert play.run([("a", 30)], []) == 0
    assert play.stored() == []


def test_an_input_of_spark_s_withwatermark_always_counts(spark: SparkSession, tmp_path: Path) -> None:
    play = Play(spark, tmp_path, lambda left, right: counted(idle(left).union(right.withWatermark("at", "0 seconds"))))
    play.run([("a", 0)], [("b", 5)])
    play.let_an_hour_pass()
    assert play.run([("a", 30)], []) == 5
    play.let_an_hour_pass()
    assert play.run([], [("b", 50)]) == 50


def test_the_policy_max_takes_the_latest(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"spark.sql.streaming.multipleWatermarkPolicy": "max"}
    play = Play(spark, tmp_path, in_union, settings=settings)
    assert play.run([("a", 10)], [("b", 5)]) == 10
    assert play.run([], [("b", 7)]) == 10
    play.let_an_hour_pass()
    assert play.run([], [("b", 8)]) == 10
    assert play.run([], [("b", 20)]) == 20


def test_a_union_is_one_input_and_a_frame_that_is_used_twice_too(spark: SparkSession, tmp_path: Path) -> None:
    as_one = Play(spark, tmp_path / "union", lambda left, right: counted(idle(left.union(right))))
    assert as_one.run([("a", 0)], [("b", 5)]) == 5
    assert as_one.run([("a", 30)], []) == 30
    assert len(json.loads(as_one.newest().read_text().split("\n")[1])["inputs"]) == 1

    def twice(left: DataFrame, right: DataFrame) -> DataFrame:
        both = idle(left)
        return counted(both.union(both.filter("k != 'a'")).union(idle(right)))

    play = Play(spark, tmp_path / "twice", twice)
    assert play.run([("a", 0), ("c", 1)], [("b", 5)]) == 1
    play.let_an_hour_pass()
    assert play.run([("c", 30)], []) == 30
    assert len(json.loads(play.newest().read_text().split("\n")[1])["inputs"]) == 2


def test_both_sides_of_a_self_join_count(spark: SparkSession, tmp_path: Path) -> None:
    def join_itself(left: DataFrame, right: DataFrame) -> DataFrame:
        frame = idle(left)
        near = f.expr("l.k = r.k and l.at between r.at - interval 5 minutes and r.at + interval 5 minutes")
        return frame.alias("l").join(frame.alias("r"), near).select("l.k").union(idle(right).select("k"))

    play = Play(spark, tmp_path, join_itself)
    assert play.run([("a", 0)], [("b", 5)]) == 0
    play.let_an_hour_pass()
    assert play.run([("a", 30)], []) == 30


def test_a_batch_that_runs_again_comes_to_the_same(spark: SparkSession, tmp_path: Path) -> None:
    def play(folder: Path, fails: bool) -> tuple[list[Any], list[str]]:  # noqa: FBT001
        play = Play(spark, folder, in_union)
        play.run([("a", 0)], [("b", 5)])
        play.let_an_hour_pass()
        if fails:
            play.fails = True
            with pytest.raises(StreamingQueryException, match="made-up failure"):
                play.run([("a", 30)], [])
            play.fails = False
            before = play.newest()
            shutil.copy(before, before.with_name(str(int(before.name) + 1)))  # as of a batch that was not committed
            assert play.run([], []) == 30
        else:
            assert play.run([("a", 30)], []) == 30
        newest = json.loads(play.newest().read_text().split("\n")[1])
        return play.take(), [each["watermarkMs"] for each in newest["inputs"]]

    assert play(tmp_path / "failing", fails=True) == play(tmp_path / "other", fails=False)


def test_inputs_are_found_again_in_a_changed_query(spark: SparkSession, tmp_path: Path) -> None:
    play = Play(spark, tmp_path, in_union)
    play.run([("a", 0)], [("b", 5)])
    play.let_an_hour_pass()
    play.query = lambda left, right: counted(
        idle(left).union(ckpt.with_watermark(right, "at", "1 minute", idle_after="2 hours"))
    )
    assert play.run([("a", 30)], []) == 5, "an hour is not two"
    play.query = lambda left, right: counted(left.withWatermark("at", "0 seconds").union(idle(right)))
    assert play.run([("a", 31)], []) == 31


def test_inputs_are_found_again_by_the_names_of_their_sources(spark: SparkSession, tmp_path: Path) -> None:
    settings = {
        "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
        "spark.sql.streaming.offsetLog.formatVersion": "2",
    }
    play = Play(spark, tmp_path, in_union, settings=settings, names=("left", "right"))
    play.run([("a", 0)], [("b", 5)])
    play.let_an_hour_pass()
    assert play.run([("a", 30)], []) == 30
    play.query = lambda left, right: in_union(right, left)
    assert play.run([("a", 60)], []) == 60


def test_idle_after_can_come_to_a_query_later(spark: SparkSession, tmp_path: Path) -> None:
    play = Play(spark, tmp_path, in_union_of_spark)
    play.run([("a", 0)], [("b", 5)])
    play.query = in_union
    assert play.run([("a", 30)], []) == 0
    play.let_an_hour_pass()
    assert play.run([("a", 31)], []) == 31


@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_savepoints_and_restores_take_the_silence_along(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    play = Play(spark, tmp_path, in_timers, settings={SHUFFLE_PARTITIONS: "2"})
    play.run([("a", 0)], [("b", 5)])
    play.let_an_hour_pass()
    saved = ckpt.savepoint(str(tmp_path / "checkpoint"), str(tmp_path / "saved"), kind=kind)  # type: ignore[arg-type]
    ckpt.restore(str(tmp_path / "saved"), str(tmp_path / "second"), parallelism=3)
    assert saved.version == int(play.newest().name) + 1
    play.checkpoint, play.settings = "second", {SHUFFLE_PARTITIONS: "3"}
    assert play.run([("a", 30)], []) == 30
    ckpt.restore(str(tmp_path / "second"), str(tmp_path / "third"), parallelism=2)
    play.checkpoint, play.settings = "third", {SHUFFLE_PARTITIONS: "2"}
    assert play.run([("a", 40)], []) == 40


def test_files_are_deleted_with_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"spark.sql.streaming.minBatchesToRetain": "2", "spark.sql.streaming.asyncLogPurge.enabled": "false"}
    play = Play(spark, tmp_path, in_union, settings=settings)
    for minute in range(0, 60, 10):
        play.run([("a", minute)], [("b", minute)])
    commits = [int(path.name) for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")]
    stored = sorted(int(path.name) for path in play.stored())
    assert stored[0] >= min(commits)
    assert stored[-1] == max(commits)
    assert len(stored) <= 3


def test_a_file_that_cannot_be_read_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    play = Play(spark, tmp_path, in_union)
    play.run([("a", 0)], [("b", 5)])
    path = play.newest()
    whole = path.read_text()
    for other, problem in (
        (whole[:-5], "is damaged"),
        (whole.replace('"seenMs":', '"seenMs":"then","then":'), "is damaged"),
        ("", "is damaged"),
        (whole.replace("v1", "v2"), "has version v2: another release of pyspark-ckpt has written it"),
    ):
        path.write_text(other)
        with pytest.raises(StreamingQueryException, match=rf"\[FormatError\] .*_ckpt/watermarks/{path.name} {problem}"):
            play.run([], [])


def test_a_query_is_refused_whose_watermark_was_not_taken_over(spark: SparkSession) -> None:
    frame = ckpt.with_watermark(spark.readStream.format("rate").load(), "timestamp", "1 minute", idle_after="1 hour")
    frame.explain()
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "a query that nobody follows")
    try:
        with pytest.raises(Py4JJavaError, match="its watermark could not be taken over"):
            frame.explain()
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type]


def test_the_frame_is_as_after_spark_s_withwatermark(spark: SparkSession) -> None:
    frame = spark.readStream.format("rate").load()
    expected = frame.withWatermark("timestamp", "5 minutes").schema.json()
    assert ckpt.with_watermark(frame, "TIMESTAMP", "5 minutes", idle_after="1 minute").schema.json() == expected


def test_wrong_arguments_are_refused(spark: SparkSession) -> None:
    frame = spark.readStream.format("rate").load()
    for event_time, after, problem in (
        ("timestamp", "0 seconds", "must be at least 1 millisecond"),
        ("timestamp", "soon", "is not a duration"),
        ("timestamp", "9223372036854775807 ms", "must be at most 4611686018427387903 milliseconds"),
        ("at", "1 minute", "there are no columns"),
    ):
        with pytest.raises(InvalidInputError, match=problem):
            ckpt.with_watermark(frame, event_time, "1 minute", idle_after=after)
    with pytest.raises(InvalidInputError, match="is not a Spark DataFrame"):
        ckpt.with_watermark([], "at", "1 minute", idle_after="1 minute")  # type: ignore[arg-type]
