"""A sink that skips batches by itself: the query is refused each time, or a batch runs for its state alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from integration.savepoints.returning import FORMATS, Files
from integration.savepoints.sinks import read_skipping, skipping_sink, write_skipping
from integration.savepoints.test_running import batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = [pytest.mark.spark, pytest.mark.in_turn, pytest.mark.parametrize("checkpoint_format", FORMATS)]


@pytest.fixture(autouse=True)
def _sink(spark: SparkSession) -> Iterator[None]:
    with skipping_sink(spark):
        yield


def test_a_query_is_refused_each_time_when_its_sink_skips_a_batch_of_other_rows(
    checkpoint_format: int, spark: SparkSession, tmp_path: Path
) -> None:
    files = Files(spark, tmp_path, checkpoint_format, write_skipping)
    files.put(4)
    ckpt.restore(tmp_path / "saved", tmp_path / "new")
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match=r"already has a batch 3\. The sink would skip the new rows"):
            files.run("new")
        assert batches(tmp_path / "new", "offsets") == [1, 2]
    assert max(read_skipping(tmp_path / "output")) == 3


def _count(rows: DataFrame) -> DataFrame:
    window = f.session_window(f.expr("timestamp_seconds(user * 100)"), "10 seconds")
    return rows.groupBy(window, "user").count().select("user", "count")


def test_a_batch_of_session_windows_runs_for_its_state_when_all_are_output(
    checkpoint_format: int, spark: SparkSession, tmp_path: Path
) -> None:
    """Spark does not count their stores then. The savepoint has no state of the batch."""

    def write(writer: DataStreamWriter, folder: Path) -> DataStreamWriter:
        return write_skipping(writer, folder).outputMode("complete")

    files = Files(spark, tmp_path, checkpoint_format, write, program=_count)
    files.forget_commit(3)
    ckpt.savepoint(tmp_path / "old", tmp_path / "again")
    ckpt.restore(tmp_path / "again", tmp_path / "new")
    files.put(4)
    files.run("new")
    assert sorted(read_skipping(tmp_path / "output")[4]) == ["0,3", "1,2", "2,2", "3,2", "4,1"]
