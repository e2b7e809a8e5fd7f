"""Queries of Spark 3.5 go on with this store on this Spark, as if they had always run on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.providers import HDFS_BACKED, OURS
from integration.short import has
from pyspark_ckpt.moving import adopt
from tests.offline.adopting.write_operators import FILES, QUERIES, start, write_file
from tests.offline.adopting.written import unpack_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

MORE_FILES = 2
WRITTEN_IN = "file:///tmp/operators/in/"
_PARTITIONS = {SHUFFLE_PARTITIONS: "3"}


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_all("3.5", tmp_path_factory.mktemp("spark-3.5"))


@pytest.mark.in_turn
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_of_spark_3_5_goes_on_with_its_state(
    name: str, older: Path, spark: SparkSession, tmp_path: Path
) -> None:
    expected: dict[int, list[str]] = {}
    for numbers in (range(FILES), range(FILES, FILES + MORE_FILES)):
        for number in numbers:
            write_file(tmp_path / "all", number)
        start(HDFS_BACKED.session(spark, **_PARTITIONS), name, tmp_path / "all", tmp_path / "old", _into(expected))
    for provider, partitions in (("rocksdb", 5), ("hdfs", 2)):
        _say_where_files_are(older / provider / name, tmp_path / "all")
        done = adopt(older / provider / name, tmp_path / provider, partitions)
        session = (OURS if has("4.2") else OURS.in_format(1)).session(spark, **{SHUFFLE_PARTITIONS: str(partitions)})
        batches: dict[int, list[str]] = {}
        start(session, name, tmp_path / "all", tmp_path / provider, _into(batches))
        assert any(batches.values()) or name == "deduplication within the watermark"
        assert batches == {batch: rows for batch, rows in expected.items() if batch >= done.version}


def _say_where_files_are(checkpoint: Path, folder: Path) -> None:
    """Change the log of the source: Spark looks for the files of the last batch."""
    for log in (checkpoint / "sources" / "0").iterdir():
        log.write_text(log.read_text().replace(WRITTEN_IN, f"file://{folder}/"))


def _into(batches: dict[int, list[str]]) -> Callable[[Any], Any]:
    def write(frame: DataFrame, batch: int) -> None:
        batches[batch] = sorted(str(row) for row in frame.collect())

    return lambda writer: writer.foreachBatch(write)
