"""Operators of Spark 3.5, which does not write down what they are, are told by what they keep."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pyspark_ckpt.cli.main import main
from pyspark_ckpt.moving import adopt
from pyspark_ckpt.offline.adopting.recognition import JOIN_STORES, SparkCheckpoint
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.options import parse

ROWS = {
    "aggregation": ("stateStoreSave", 9),
    "aggregation of all": ("stateStoreSave", 1),
    "deduplication": ("dedupe", 75),
    "deduplication within the watermark": ("dedupeWithinWatermark", 1),
    "groups": ("applyInPandasWithState", 9),
    "limit": ("globalLimit", 1),
    "session windows": ("sessionWindowStateStoreSaveExec", 15),
}
"""What Spark 4 calls each operator, and how many rows it has."""


def _record(checkpoint: Path) -> str:
    version, record = (checkpoint / "state" / "0" / "_metadata" / "metadata").read_text().split("\n")
    assert version == "v1"
    assert json.loads(record)["operatorInfo"]["operatorId"] == 0
    return str(json.loads(record)["operatorInfo"]["operatorName"])


@pytest.mark.parametrize("name", ROWS)
def test_an_operator_gets_the_name_that_spark_4_gives_it(name: str, older_checkpoints: Path, tmp_path: Path) -> None:
    done = {each: adopt(older_checkpoints / each / name, tmp_path / each, 5) for each in ("rocksdb", "hdfs")}
    expected, rows = ROWS[name]
    assert done["rocksdb"].states == done["hdfs"].states
    assert [each.digest.rows for each in done["hdfs"].states] == [rows]
    for each in done:
        assert _record(tmp_path / each) == expected
        assert main(["checkpoint", "verify", str(tmp_path / each)]) == 0


def test_a_join_is_told_by_its_stores(older_checkpoints: Path, tmp_path: Path) -> None:
    done = {each: adopt(older_checkpoints / each / "join", tmp_path / each, 2) for each in ("rocksdb", "hdfs")}
    assert done["rocksdb"].states == done["hdfs"].states
    assert {each.store for each in done["hdfs"].states} == set(JOIN_STORES)
    assert _record(tmp_path / "hdfs") == "symmetricHashJoin"


@pytest.mark.parametrize("form", ["hdfs", "rocksdb"])
def test_the_record_is_the_one_that_spark_4_writes(form: str, checkpoints: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoints / form, copy)
    named = SparkCheckpoint(str(copy), parse({})).operators()
    shutil.rmtree(copy / "state" / "0" / "_metadata")
    again = SparkCheckpoint(str(copy), parse({}))
    assert again.operators() == named
    assert again.unnamed == named


def test_what_cannot_be_told_is_refused(older_checkpoints: Path, checkpoints: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(older_checkpoints / "hdfs" / "join", copy)
    shutil.rmtree(copy / "state" / "0" / "0" / JOIN_STORES[2] / "_metadata")
    with pytest.raises(FormatError, match="has no schema of the store 'right-keyToNumValues' of a join"):
        adopt(copy, tmp_path / "never")
    shutil.rmtree(copy)
    shutil.copytree(checkpoints / "processor", copy)
    shutil.rmtree(copy / "state" / "0" / "_metadata")
    with pytest.raises(FormatError, match="_metadata does not say what operator 0 is"):
        adopt(copy, tmp_path / "never")
    shutil.rmtree(copy)
    shutil.copytree(older_checkpoints / "hdfs" / "groups", copy)
    shutil.rmtree(copy / "state" / "0" / "0" / "_metadata")
    with pytest.raises(FormatError, match=r"needs Spark's schemas in state/0/0/_metadata"):
        adopt(copy, tmp_path / "never")
    assert not (tmp_path / "never").exists()
