"""Programs of ``transformWithState`` that no longer declare what they once had, moved to this store and back."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StructField, StructType

import pyspark_ckpt as ckpt
from integration.operators.providers import OURS, ROCKSDB
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from integration.operators.providers import Provider

NUMBER = StructType([StructField("n", LongType())])
KEYS = [f"key-{number}" for number in range(8)]


class Counting(StatefulProcessor):
    """Counts rows in each variable of ``has``: a and b are values, l is a list, m is a map."""

    def __init__(self, has: str, deletes: str = "") -> None:
        self.has, self.deletes = has, deletes

    def init(self, handle: Any) -> None:  # noqa: ANN401 - of Spark, which other releases do not have
        for name in self.deletes:
            handle.deleteIfExists(name)
        self.values = {name: handle.getValueState(name, NUMBER) for name in self.has if name in "ab"}
        self.lists = {name: handle.getListState(name, NUMBER) for name in self.has if name == "l"}
        self.maps = {name: handle.getMapState(name, NUMBER, NUMBER) for name in self.has if name == "m"}

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: ANN401, ARG002, N802, N803
        count, seen = sum(map(len, rows)), []
        for value in self.values.values():
            before = value.get()[0] if value.exists() else 0
            value.update((before + count,))
            seen.append(str(before + count))
        for each in self.lists.values():
            each.appendValue((count,))
            seen.append(str(len(list(each.get()))))
        for each in self.maps.values():
            each.updateValue((count,), (count,))
            seen.append(str(len(list(each.keys()))))
        yield pd.DataFrame({"k": [key[0]], "seen": [" ".join(seen)]})

    def close(self) -> None:
        """Nothing is open."""


class Life:
    """A query in a folder, whose programs run a batch each."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.files = spark, folder, 0
        (folder / "in").mkdir()

    def run(self, provider: Provider, program: Counting, checkpoint: str) -> set[str]:
        """What a batch with a row of each key says of what it has seen."""
        (self.folder / "in" / f"{self.files}.csv").write_text("\n".join(KEYS) + "\n")
        self.files += 1
        session = provider.session(self.spark)
        frame = session.readStream.schema("k string").csv(str(self.folder / "in"))
        out: list[Any] = []
        query = (
            frame.groupBy("k")
            .transformWithStateInPandas(program, "k string, seen string", "Update", "None")
            .writeStream.outputMode("update")
            .option("checkpointLocation", str(self.folder / checkpoint))
            .trigger(availableNow=True)
            .foreachBatch(lambda rows, _batch: out.extend(rows.collect()))
            .start()
        )
        query.awaitTermination()
        assert sorted(row.k for row in out) == KEYS
        return {row.seen for row in out}


@pytest.mark.in_turn
def test_a_program_that_dropped_variables_moves_there_and_back_with_them(spark: SparkSession, tmp_path: Path) -> None:
    life = Life(spark, tmp_path)
    assert life.run(ROCKSDB, Counting("ablm"), "old") == {"1 1 1 1"}
    assert life.run(ROCKSDB, Counting("ab"), "old") == {"2 2"}
    assert life.run(ROCKSDB, Counting("a", deletes="l"), "old") == {"3"}
    done = ckpt.moving.adopt(tmp_path / "old", tmp_path / "new", 3)
    rows = {each.name: each.digest.rows for each in done.states}
    assert {name: rows[name] for name in "abm"} == dict.fromkeys("abm", len(KEYS))
    assert rows.get("l", 0) == 0
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    assert life.run(OURS, Counting("a"), "new") == {"4"}
    assert life.run(OURS, Counting("abm"), "new") == {"5 3 1"}, "what was undeclared for a while is still there"
    assert life.run(OURS, Counting("a", deletes="b"), "new") == {"6"}
    ckpt.moving.hand_back(tmp_path / "new", tmp_path / "back")
    assert life.run(ROCKSDB, Counting("a"), "back") == {"7"}
    assert life.run(ROCKSDB, Counting("abm"), "back") == {"8 1 1"}


def test_rows_without_a_schema_are_refused_before_anything_is_written_or_left_behind(
    spark: SparkSession, tmp_path: Path
) -> None:
    life = Life(spark, tmp_path)
    life.run(ROCKSDB, Counting("ab"), "old")
    life.run(ROCKSDB, Counting("a"), "old")
    newest = ckpt_schema_files(tmp_path / "old")[-1]
    for file in ckpt_schema_files(tmp_path / "old"):
        if file != newest:
            file.unlink()  # Spark itself would not go on either: its metadata names them
    before = {path: path.read_bytes() for path in (tmp_path / "old").rglob("*") if path.is_file()}
    with pytest.raises(InvalidInputError, match=r"has rows of the states \['b'\].*Nothing was written"):
        ckpt.moving.adopt(tmp_path / "old", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    done = ckpt.moving.adopt(tmp_path / "old", tmp_path / "new", drop_unknown_states=True)
    assert {each.name for each in done.states if each.digest.rows} == {"a"}
    assert {path: path.read_bytes() for path in (tmp_path / "old").rglob("*") if path.is_file()} == before
    shutil.rmtree(tmp_path / "new")


def ckpt_schema_files(checkpoint: Path) -> list[Path]:
    """The schema files of the operator, from the oldest on."""
    files = (checkpoint / "state" / "0" / "_stateSchema" / "default").iterdir()
    return sorted((each for each in files if each.name[0].isdigit()), key=lambda each: int(each.name.split("_")[0]))
