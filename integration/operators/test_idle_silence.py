"""Idle inputs: how long a silence is known to have lasted, which queries know of it, and what the log says."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import pyspark_ckpt as ckpt
from integration.operators.idle_plays import SCHEMA, Play, wait_for
from integration.operators.idle_queries import counted, idle, in_union

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def test_a_run_with_available_now_knows_of_no_silence_after_its_start(spark: SparkSession, tmp_path: Path) -> None:
    play = Play(spark, tmp_path, lambda left, right: counted(idle(left, "2 seconds").union(idle(right, "2 seconds"))))
    play.run([("a", 0)], [("b", 5)])
    for minute in (10, 20, 30):
        play.give([("a", minute)], [])
    play.give([], [("b", 6)])
    play.pause_s = 1.5
    assert play.run([], []) == 6, "rows that arrive while it runs are of the next run"
    play.pause_s = 0
    time.sleep(2)
    assert play.run([("a", 40)], [("b", 7)]) == 7
    play.give([("a", 50)], [])
    time.sleep(2)
    assert play.run([], []) == 50
    assert ("b", "00:00", 3) in play.take()


def test_a_clock_that_goes_back_keeps_no_input_from_becoming_idle(spark: SparkSession, tmp_path: Path) -> None:
    play = Play(spark, tmp_path, in_union)
    play.run([("a", 0)], [("b", 5)])
    play.move_seen_times(timedelta(days=3650))
    assert play.run([("a", 30)], []) == 5, "the silence begins anew"
    play.let_an_hour_pass()
    assert play.run([("a", 31)], []) == 31


@pytest.mark.parametrize("name", ["at.all", "a`t"])
def test_the_event_time_may_have_any_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    def query(left: DataFrame, right: DataFrame) -> DataFrame:
        sides = (frame.withColumnRenamed("at", name) for frame in (left, right))
        left, right = (ckpt.with_watermark(side, name, "0 seconds", idle_after="1 hour") for side in sides)
        return counted(left.union(right).toDF("k", "at"))

    play = Play(spark, tmp_path, query)
    assert play.run([("a", 10)], [("b", 5)]) == 5
    play.let_an_hour_pass()
    assert play.run([("a", 30)], []) == 30


def test_the_inputs_of_a_query_that_starts_inside_foreach_batch_can_be_idle(
    spark: SparkSession, tmp_path: Path
) -> None:
    def start_another(frame: DataFrame, _batch: int) -> None:
        frame.collect()
        own = frame.sparkSession
        left, right = (own.readStream.schema(SCHEMA).parquet(str(tmp_path / f"input{number}")) for number in range(2))
        writer = in_union(left, right).writeStream.format("noop").trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "other")).start().awaitTermination()

    play = Play(spark, tmp_path, in_union)
    play.give([("a", 0)], [("b", 5)])
    play.collect = start_another
    play.run([], [])
    assert (tmp_path / "other" / "_ckpt" / "watermarks" / "0").exists()


def test_the_log_says_which_input_is_idle(spark: SparkSession, tmp_path: Path) -> None:
    play = Play(spark, tmp_path, lambda left, right: counted(idle(left).union(idle(right, "2 seconds"))))
    play.give([("a", 30)], [("b", 5)])
    log, said = _Log(spark), f"the input with the event time at of FileStreamSource[file:{tmp_path}/input1]"
    query = play.start(processingTime="0 seconds")
    try:
        wait_for(query, 30)
        assert f"Query {query.id}: {said} is idle: it has had no rows since 20" in log.text
        assert "again" not in log.text
        play.give([], [("b", 31)])
        while f"{said} has rows again, and counts for the watermark" not in log.text:
            assert query.isActive, query.exception()
            time.sleep(0.05)
        assert "input0" not in log.text
    finally:
        query.stop()
        log.close()


class _Log:
    """What the driver logs about idle inputs."""

    def __init__(self, spark: SparkSession) -> None:
        log4j: Any = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
        self._writer: Any = spark._jvm.java.io.StringWriter()  # type: ignore[union-attr]
        self._appender = log4j.core.appender.WriterAppender.createAppender(
            None, None, self._writer, "idle", False, True
        )
        self._appender.start()
        self._logger = log4j.LogManager.getLogger("org.apache.spark.sql.ckpt.plan.inputs.IdleTracker")
        self._before = self._logger.getLevel()
        self._logger.addAppender(self._appender)
        self._logger.setLevel(log4j.Level.INFO)

    @property
    def text(self) -> str:
        return str(self._writer.toString())

    def close(self) -> None:
        self._logger.removeAppender(self._appender)
        self._logger.setLevel(self._before)
