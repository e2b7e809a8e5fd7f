"""A foreachBatch function that does not read all of its frame: the error says so, and a function that does succeeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from integration.operators.providers import OURS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    Each = Callable[[DataFrame, int], object]


def run(spark: SparkSession, folder: Path, each: Each) -> None:
    """Count words in four partitions of state; the next run of a folder has more of them."""
    (folder / "words").mkdir(exist_ok=True)
    number = len(list((folder / "words").iterdir()))
    (folder / "words" / f"{number}.txt").write_text("one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n")
    words = spark.readStream.text(str(folder / "words")).groupBy("value").count()
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


@pytest.mark.parametrize("partial", PARTIAL)
def test_a_function_that_reads_a_part_of_its_frame_is_told_so(
    partial: str, spark: SparkSession, tmp_path: Path
) -> None:
    session = OURS.session(spark, **{"spark.sql.shuffle.partitions": "4"})
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
