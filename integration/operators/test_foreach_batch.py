"""A foreachBatch function that does not read all of its frame: the error says so, and a function that does succeeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.providers import OURS
from integration.short import has

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

    Each = Callable[[DataFrame, int], object]


def run(spark: SparkSession, folder: Path, each: Each, files: int = 1) -> None:
    """Count words in four partitions of state, a file in each batch; the next run of a folder has more files."""
    (folder / "words").mkdir(exist_ok=True)
    known = len(list((folder / "words").iterdir()))
    for number in range(known, known + files):
        (folder / "words" / f"{number}.txt").write_text("one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n")
    lines = spark.readStream.option("maxFilesPerTrigger", "1").text(str(folder / "words"))
    words = lines.groupBy("value").count()
    writer = words.writeStream.outputMode("update").option("checkpointLocation", str(folder / "checkpoint"))

    def process(frame: DataFrame, batch: int) -> None:
        each(frame, batch)

    query = writer.foreachBatch(process).trigger(availableNow=True).start()
    query.awaitTermination()


PARTIAL: dict[str, Each] = {
    "nothing": lambda _frame, _batch: None,
    "take": lambda frame, _batch: frame.take(1),
}
WHOLE: dict[str, Each] = {
    "count": lambda frame, _batch: frame.count(),
    "twice": lambda frame, _batch: (frame.take(1), frame.collect()),
    "noop": lambda frame, _batch: frame.write.format("noop").mode("overwrite").save(),
}


FORMATS = [1, 2] if has("4.1") else [1]


@pytest.mark.in_turn
@pytest.mark.parametrize("checkpoint_format", FORMATS)
@pytest.mark.parametrize("partial", PARTIAL)
def test_a_function_that_reads_a_part_of_its_frame_is_told_so(
    partial: str, checkpoint_format: int, spark: SparkSession, tmp_path: Path
) -> None:
    session = OURS.in_format(checkpoint_format).session(spark, **{SHUFFLE_PARTITIONS: "4"})
    with pytest.raises(StreamingQueryException) as failed:
        run(session, tmp_path, PARTIAL[partial])
    text = str(failed.value)
    assert "The foreachBatch function read only a part of its frame, or nothing: in batch 0, " in text
    assert " of 4 partitions of operator 0 were not processed" in text
    assert "Read all of the frame" in text
    totals: list[int] = []
    for each in WHOLE.values():
        run(session, tmp_path, each)
    run(session, tmp_path, lambda frame, _batch: totals.extend(row["count"] for row in frame.collect()))
    assert totals == [5] * 8


def _set_before(frame: DataFrame) -> list[Row]:
    frame.sparkSession.conf.set(SHUFFLE_PARTITIONS, "2")
    return frame.collect()


def _set_after(frame: DataFrame) -> list[Row]:
    rows = frame.collect()
    frame.sparkSession.conf.set(SHUFFLE_PARTITIONS, "2")
    return rows


def _read_in_another_session(frame: DataFrame) -> list[Row]:
    frame.createOrReplaceGlobalTempView("totals")
    other = frame.sparkSession.newSession()
    other.conf.set(SHUFFLE_PARTITIONS, "2")
    return other.sql("SELECT * FROM global_temp.totals").collect()


@pytest.mark.parametrize("read", [_set_before, _set_after, _read_in_another_session])
def test_the_number_of_partitions_stays_when_a_function_sets_another_one(
    read: Callable[[DataFrame], list[Row]], spark: SparkSession, tmp_path: Path
) -> None:
    session = OURS.session(spark, **{SHUFFLE_PARTITIONS: "4"})
    totals: list[int] = []
    for number in range(1, 4):
        totals.clear()
        run(session, tmp_path, lambda frame, _batch: totals.extend(row["count"] for row in read(frame)), files=2)
        assert totals == [2 * number - 1] * 8 + [2 * number] * 8
    assert sorted(int(each.name) for each in (tmp_path / "checkpoint" / "state" / "0").glob("[0-9]*")) == [0, 1, 2, 3]
