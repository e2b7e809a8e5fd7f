"""A driver dies after the file sink has a batch and before its commit: the query goes on with all rows, each once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import pyspark_ckpt as ckpt
from integration.conftest import SHUFFLE_PARTITIONS
from integration.operators.providers import OURS
from integration.savepoints.test_composed import Count
from integration.short import has

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

FORMATS = [1, 2] if has("4.1") else [1]
OUTPUT = "user long, n long"


def _count(rows: DataFrame) -> DataFrame:
    return ckpt.keyed(rows, by="user", uid="counts").process(Count(), OUTPUT, "append")


def _distinct(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["user"]).selectExpr("user", "1L AS n")


def _both(rows: DataFrame) -> DataFrame:
    return _count(rows.dropDuplicates(["user", "file"]))


PROGRAMS = {"keyed": _count, "deduplication": _distinct, "chain": _both}


@pytest.mark.in_turn
@pytest.mark.spark
@pytest.mark.parametrize("checkpoint_format", FORMATS)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("is_restored", [False, True], ids=["", "restored"])
def test_a_batch_that_the_sink_has_and_the_query_has_not_committed_runs_for_its_state(
    program: str,
    checkpoint_format: int,
    is_restored: bool,  # noqa: FBT001
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    session = OURS.in_format(checkpoint_format).session(spark, **{SHUFFLE_PARTITIONS: "3"})
    checkpoint = tmp_path / "checkpoint"
    (tmp_path / "input").mkdir()

    def run(file: int) -> None:
        lines = [json.dumps({"user": user, "file": file}) for user in (file, file + 1, file + 2)]
        (tmp_path / "input" / f"{file}.json").write_text("\n".join(lines))
        rows = session.readStream.schema("user long, file long").json(str(tmp_path / "input"))
        writer = PROGRAMS[program](rows).writeStream.format("json").option("path", str(tmp_path / "output"))
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query = writer.start()
        query.awaitTermination()
        assert query.exception() is None

    def forget_commit(batch: int) -> None:
        """Leave what a driver leaves that dies before the commit."""
        commits = checkpoint / "commits"
        assert max(int(each.name) for each in commits.iterdir() if each.name.isdigit()) == batch
        (commits / f"{batch}").unlink()
        (commits / f".{batch}.crc").unlink(missing_ok=True)

    for file in range(6):
        run(file)
        if file in (0, 2, 3):
            forget_commit(file)
        if file == 3 and is_restored:  # from a savepoint, which has no state of the batch
            ckpt.savepoint(checkpoint, tmp_path / "saved")
            checkpoint = tmp_path / "restored"
            ckpt.restore(tmp_path / "saved", checkpoint)
    found = sorted(tuple(row) for row in session.read.json(str(tmp_path / "output")).select("user", "n").collect())
    expected = {user: [file for file in range(6) if file <= user <= file + 2] for user in range(8)}
    if program == "deduplication":
        assert found == [(user, 1) for user in expected]
    else:
        assert found == [(user, n + 1) for user, files in expected.items() for n in range(len(files))]
