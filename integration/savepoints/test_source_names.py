"""A query whose sources have no names gets them in a restore: then it can have other sources, in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.providers import CHECKPOINT_FORMAT, OURS
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from pyspark_ckpt.state_store.savepoints.savepoint import Kind

pytestmark = pytest.mark.spark

COLUMNS = "user string, n bigint"
EVOLUTION = {"spark.sql.streaming.queryEvolution.enableSourceEvolution": "true"}
LOG_FORMAT = "spark.sql.streaming.offsetLog.formatVersion"
COMPACTION = {"spark.sql.streaming.fileSource.log.compactInterval": "2"}


class Sums:
    """Sums by user over a union of folders of files. A batch that fails has been seen by nobody."""

    def __init__(self, spark: SparkSession, folder: Path, checkpoint_format: str) -> None:
        self.spark, self.folder, self.format = spark, folder, checkpoint_format
        self.found: dict[str, int] = {}
        self.fails = False

    def put(self, **rows: tuple[str, int]) -> None:
        """Write a file into each of these folders."""
        for name, row in rows.items():
            frame = self.spark.createDataFrame([row], COLUMNS).coalesce(1)
            frame.write.mode("append").parquet(str(self.folder / name))

    def run(
        self,
        checkpoint: str,
        *folders: str,
        partitions: int = 2,
        are_named: bool = True,
        settings: Mapping[str, str] = COMPACTION,
    ) -> dict[str, int]:
        """Run the query until it has read all; the sum of each user."""
        confs = {SHUFFLE_PARTITIONS: str(partitions), CHECKPOINT_FORMAT: self.format}
        session = OURS.session(self.spark, **confs, **settings, **(EVOLUTION if are_named else {}))

        def read(name: str) -> DataFrame:
            reader = session.readStream.schema(COLUMNS)
            return (reader.name(f"of_{name}") if are_named else reader).parquet(str(self.folder / name))

        frame = read(folders[0])
        for name in folders[1:]:
            frame = frame.union(read(name))
        writer = frame.groupBy("user").sum("n").writeStream.outputMode("update").foreachBatch(self._see)
        writer = writer.option("checkpointLocation", str(self.folder / checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination()
        return self.found

    def _see(self, rows: DataFrame, _batch: int) -> None:
        if self.fails:
            raise RuntimeError("made-up failure")
        self.found.update(map(tuple, rows.collect()))


def restore(sums: Sums, target: str, names: Sequence[str], **how: Any) -> None:  # noqa: ANN401
    ckpt.restore(str(sums.folder / "saved"), str(sums.folder / target), source_names=names, **how)


@pytest.mark.in_turn
@pytest.mark.parametrize(("checkpoint_format", "kind"), [("1", "native"), ("2", "canonical")])
@pytest.mark.parametrize("log_format", ["1", "2"])
def test_sources_get_names_and_others_come_before_them(
    spark: SparkSession,
    tmp_path: Path,
    checkpoint_format: str,
    kind: Kind,
    log_format: str,
) -> None:
    sums = Sums(spark, tmp_path, checkpoint_format)
    without: dict[str, Any] = {"are_named": False, "settings": {**COMPACTION, LOG_FORMAT: log_format}}
    for batch in range(4):
        sums.put(a=("ada", 1), b=("bob", 10 + batch))
        sums.run("old", "a", "b", **without)
    sums.put(a=("ada", 100))
    sums.run("old", "a", "b", **without)
    sums.put(b=("ada", 1000))
    sums.fails = True
    with pytest.raises(StreamingQueryException, match="made-up failure"):
        sums.run("old", "a", "b", **without)
    sums.fails = False
    assert sums.found == {"ada": 104, "bob": 46}
    ckpt.savepoint(str(tmp_path / "old"), str(tmp_path / "saved"), kind=kind)
    with pytest.raises(InvalidInputError, match=r"has 1 name, .* 2 sources: \(0\) .*/a/part-.* \(1\) .*/b/part-"):
        restore(sums, "new", ["of_a"])
    restore(sums, "new", ["of_a", "of_b"], parallelism=3)
    sums.put(a=("ada", 10_000), c=("ada", 100_000))
    assert sums.run("new", "c", "b", "a", partitions=3) == {"ada": 111_104, "bob": 46}
    ckpt.restore(str(tmp_path / "new"), str(tmp_path / "rescaled"), parallelism=2)
    sums.put(b=("bob", 1_000_000), c=("bob", 2_000_000))
    assert sums.run("rescaled", "b", "c") == {"ada": 111_104, "bob": 3_000_046}
    ckpt.savepoint(str(tmp_path / "rescaled"), str(tmp_path / "again"))
    with pytest.raises(InvalidInputError, match=r"the sources of .* already have names: \['of_b', 'of_c'\]"):
        ckpt.restore(str(tmp_path / "again"), str(tmp_path / "newest"), source_names=["x", "y"])


def test_a_source_that_has_had_no_rows_gets_its_name_too(spark: SparkSession, tmp_path: Path) -> None:
    sums = Sums(spark, tmp_path, "2")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    sums.put(b=("bob", 1))
    sums.run("old", "a", "b", are_named=False)
    ckpt.savepoint(str(tmp_path / "old"), str(tmp_path / "saved"))
    restore(sums, "new", ["of_a", "of_b"])
    sums.put(a=("ada", 10), b=("bob", 100))
    assert sums.run("new", "b", "a") == {"ada": 10, "bob": 101}


def test_the_sources_of_a_frame_that_is_used_twice_get_no_names(spark: SparkSession, tmp_path: Path) -> None:
    sums = Sums(spark, tmp_path, "2")
    sums.put(a=("ada", 1), b=("bob", 1))
    session = OURS.session(spark, **{SHUFFLE_PARTITIONS: "2"})
    read = {name: session.readStream.schema(COLUMNS).parquet(str(tmp_path / name)) for name in ("a", "b")}
    frame = read["a"].union(read["a"]).union(read["b"]).groupBy("user").sum("n")
    writer = frame.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "old")).start().awaitTermination()
    ckpt.savepoint(str(tmp_path / "old"), str(tmp_path / "saved"))
    with pytest.raises(InvalidInputError, match=r"The files of source \(2\) in .*, are not in sources/2"):
        restore(sums, "new", ["of_a", "also_of_a", "of_b"])
    assert not (tmp_path / "new").exists()


def test_a_renamed_log_is_as_spark_writes_it(spark: SparkSession, tmp_path: Path) -> None:
    sums = Sums(spark, tmp_path, "2")
    sums.put(a=("ada", 1), b=("bob", 1))
    sums.run("old", "a", "b", are_named=False)
    sums.run("spark", "a", "b")
    ckpt.savepoint(str(tmp_path / "old"), str(tmp_path / "saved"))
    restore(sums, "new", ["of_a", "of_b"])
    made, expected = ((tmp_path / each / "offsets" / "0").read_text().split("\n") for each in ("new", "spark"))
    assert (made[0], made[2:]) == (expected[0], expected[2:])
    times = '"batchTimestampMs":'
    assert made[1].partition(times)[2].partition(",")[2] == expected[1].partition(times)[2].partition(",")[2]
