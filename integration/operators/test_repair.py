"""A query with damaged logs goes on exactly once after ``checkpoint repair --apply``."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.cli.main import main

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
FILES = 5


class Counting:
    """A query that counts lines, a file a batch, into a sink that replaces what it has of a batch."""

    def __init__(self, spark: SparkSession, folder: Path, version: int) -> None:
        spark.conf.set(FORMAT, str(version))
        self._spark, self.lines, self.sink = spark, folder / "lines", folder / "sink"
        self.checkpoint = folder / "checkpoint"
        self._expected = Counter[str]()
        self.lines.mkdir()
        self.sink.mkdir()

    def add_files(self, count: int) -> None:
        """Add lines, in the order in which Spark reads files."""
        first = len(list(self.lines.iterdir()))
        for number in range(first, first + count):
            lines = [f"key {(number + each) % 4}" for each in range(1 + number % 3)]
            self._expected.update(lines)
            path = self.lines / f"{number:04d}.txt"
            path.write_text("\n".join(lines), encoding="utf-8")
            os.utime(path, (1_700_000_000 + number,) * 2)

    def run(self) -> str:
        """Process what there is. Return the id of the query."""
        frame = self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.lines))
        written = frame.groupBy("value").count().writeStream.outputMode("update").foreachBatch(self._write)
        query = written.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return str(query.id)

    def _write(self, rows: DataFrame, batch: int) -> None:
        counted = {row.value: row["count"] for row in rows.collect()}
        (self.sink / str(batch)).write_text(json.dumps(counted), encoding="utf-8")

    def require_all_counted_once(self) -> None:
        """The newest count of each line is that of all files."""
        found: dict[str, int] = {}
        for batch in sorted(int(each.name) for each in self.sink.iterdir()):
            found |= json.loads((self.sink / str(batch)).read_text(encoding="utf-8"))
        assert found == self._expected


@pytest.mark.in_turn
@pytest.mark.spark
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("emptied", "deleted"),
    [
        (("offsets/4", "commits/4", "commits/3", "sources/0/4"), ()),  # a loss of power
        ((), ("commits/4", "commits/3")),  # somebody has deleted what "did not start"
        (("metadata",), ("offsets/4",)),
    ],
    ids=str,
)
def test_rows_are_counted_once_after_a_repair(
    spark: SparkSession,
    tmp_path: Path,
    emptied: tuple[str, ...],
    deleted: tuple[str, ...],
    version: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    query = Counting(spark, tmp_path, version)
    query.add_files(FILES)
    its = query.run()
    for name in emptied:
        (query.checkpoint / name).write_bytes(b"")
    for name in deleted:
        (query.checkpoint / name).unlink()
    query.add_files(2)
    if emptied:
        with pytest.raises(Exception, match=r"Incomplete log file|No content to map|doesn't exist"):
            query.run()
    capsys.readouterr()
    given = ["--query-id", its] if "metadata" in emptied else []
    assert main(["checkpoint", "repair", str(query.checkpoint), "--apply", "--json", *given]) == 0
    told = json.loads(capsys.readouterr().out)
    for batch in range(told["cut_anew"][0], told["cut_anew"][1] + 1) if told["cut_anew"] else ():
        (query.sink / str(batch)).unlink(missing_ok=True)
    assert query.run() == its
    query.require_all_counted_once()


@pytest.mark.in_turn
@pytest.mark.spark
@pytest.mark.parametrize(
    ("emptied", "deleted", "first_cut"),
    [
        (("_ckpt/replay/3",), (), 3),
        ((), ("_ckpt/replay/4",), 4),
        ((), ("_ckpt/replay/5",), 5),
        (("sources/0/4",), (), 4),
    ],
    ids=str,
)
def test_rows_are_counted_once_after_a_repair_of_plans_that_a_restore_has_carried_over(
    spark: SparkSession,
    tmp_path: Path,
    emptied: tuple[str, ...],
    deleted: tuple[str, ...],
    first_cut: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    query = Counting(spark, tmp_path, 1)
    query.add_files(3)
    query.run()
    ckpt.savepoint(query.checkpoint, tmp_path / "saved")
    query.add_files(3)
    query.run()
    ckpt.restore(tmp_path / "saved", tmp_path / "new", replay_from=query.checkpoint)
    query.checkpoint = tmp_path / "new"
    for name in emptied:
        (query.checkpoint / name).write_bytes(b"")
    for name in deleted:
        (query.checkpoint / name).unlink()
    query.add_files(2)
    capsys.readouterr()
    assert main(["checkpoint", "repair", str(query.checkpoint), "--apply", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["cut_anew"] == [first_cut, 5]
    for batch in range(first_cut, 6):
        (query.sink / str(batch)).unlink()
    query.run()
    query.require_all_counted_once()


@pytest.mark.in_turn
@pytest.mark.spark
@pytest.mark.parametrize(
    ("source", "over"), [("offsets/1", "offsets/3"), ("offsets/1", "offsets/4"), ("sources/0/0", "sources/0/4")]
)
def test_rows_are_counted_once_after_a_repair_of_an_entry_that_was_copied_over_another(
    spark: SparkSession, tmp_path: Path, source: str, over: str, capsys: pytest.CaptureFixture[str]
) -> None:
    query = Counting(spark, tmp_path, 1)
    query.add_files(FILES)
    query.run()
    (query.checkpoint / over).write_bytes((query.checkpoint / source).read_bytes())
    (query.checkpoint / "commits/4").unlink()
    query.add_files(2)
    capsys.readouterr()
    assert main(["checkpoint", "verify", str(query.checkpoint)]) == 1
    assert over in capsys.readouterr().out
    assert main(["checkpoint", "repair", str(query.checkpoint), "--apply", "--json"]) == 0
    first, last = json.loads(capsys.readouterr().out)["cut_anew"]
    for batch in range(first, last + 1):
        (query.sink / str(batch)).unlink()
    query.run()
    query.require_all_counted_once()


@pytest.mark.in_turn
@pytest.mark.spark
@pytest.mark.parametrize("version", [1, 2])
def test_a_query_without_logs_is_not_said_to_start(
    spark: SparkSession, tmp_path: Path, version: int, capsys: pytest.CaptureFixture[str]
) -> None:
    query = Counting(spark, tmp_path, version)
    query.add_files(3)
    query.run()
    for log in ("offsets", "commits"):
        for path in (query.checkpoint / log).iterdir():
            path.unlink()
    for command in ("repair", "verify"):
        assert main(["checkpoint", command, str(query.checkpoint)]) == 1
        assert "there is state of version 3: the commit log is lost" in capsys.readouterr().out
