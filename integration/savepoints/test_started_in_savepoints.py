"""A query that is started in the folder of a savepoint is refused, and the savepoint stays as it is."""

from __future__ import annotations

import re
import shlex
import shutil
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import IllegalArgumentException

import pyspark_ckpt as ckpt
from integration.operators.providers import ROCKSDB
from integration.savepoints.returning import FORMATS, Files
from integration.savepoints.test_running import batches
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.savepoints.savepoint import Kind
from tests.labs.saved_query import files as contents

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def stateless(rows: DataFrame) -> DataFrame:
    return rows.where("user >= 0")


def refused(files: Files, folder: str, text: str) -> str:
    """Start the query there, in sessions with and without our provider, with and without state; return the error."""
    before = contents(files.folder / folder)
    program, messages = files.program, set()
    provider = files._provider
    for each in (program, stateless):
        for own in (ROCKSDB, provider):
            files.program = each
            files.use(own)
            with pytest.raises(IllegalArgumentException, match=text) as raised:
                files.run(folder)
            messages.add(str(raised.value))
    files.program = program
    assert contents(files.folder / folder) == before
    (message,) = messages
    return message


@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_a_query_is_not_started_in_a_savepoint_and_goes_on_as_the_error_says(
    kind: Kind, spark: SparkSession, tmp_path: Path
) -> None:
    files = Files(spark, tmp_path, FORMATS[-1], later=())
    shutil.rmtree(tmp_path / "saved")
    ckpt.savepoint(tmp_path / "old", tmp_path / "saved", kind=kind)
    message = refused(files, "saved", r"not started on .*saved: it is a savepoint, and the query would change it")
    found = re.search(r"`pyspark-ckpt ([^`]*) NEW_CHECKPOINT`", message)
    assert found is not None
    assert main([*shlex.split(found[1]), str(tmp_path / "new")]) == 0
    files.put(3)
    files.run("new")
    assert files.users() == list(range(4))


def unfinished(saved: Path) -> None:
    (saved / "savepoint.json").unlink()
    (saved / "savepoint.unfinished").write_bytes(b"0123456789abcdef 3")


def half_deleted(saved: Path) -> None:
    (saved / "savepoint.json").unlink()
    (saved / "savepoint.unfinished").write_bytes(b"deleting 3")
    (saved / "commits" / "1").unlink()


def of_an_earlier_build(saved: Path) -> None:
    (saved / "savepoint.json").unlink()
    (saved / "savepoint.unfinished").touch()


def damaged(saved: Path) -> None:
    (saved / "savepoint.json").write_bytes(b"rubbish")


@pytest.mark.parametrize(
    ("harm", "text", "mark"),
    [
        (unfinished, "an unfinished or half-deleted savepoint", "savepoint.unfinished"),
        (half_deleted, "an unfinished or half-deleted savepoint", "savepoint.unfinished"),
        (of_an_earlier_build, "an unfinished or half-deleted savepoint", "savepoint.unfinished"),
        (damaged, "a savepoint whose savepoint.json is damaged", "savepoint.json"),
    ],
)
def test_a_query_is_not_started_in_what_cannot_be_restored(
    harm: Callable[[Path], None], text: str, mark: str, spark: SparkSession, tmp_path: Path
) -> None:
    """If the folder is a checkpoint in truth, the query goes on when the mark is deleted, as the error says."""
    files = Files(spark, tmp_path, FORMATS[-1], later=())
    harm(tmp_path / "saved")
    message = refused(files, "saved", f"not started on .*saved: it is {text}")
    assert re.search(rf"checkpoint of a query that was started here, delete only .*saved/{re.escape(mark)}, ", message)
    if harm is not half_deleted:
        (tmp_path / "saved" / mark).unlink()
        files.put(3)
        files.run("saved")
        assert files.users() == list(range(4))


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_query_that_an_earlier_release_has_started_in_a_savepoint_goes_on(
    is_finished: bool,  # noqa: FBT001
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    files = Files(spark, tmp_path, FORMATS[-1], later=())
    content = (tmp_path / "saved" / "savepoint.json").read_bytes()
    (tmp_path / "saved" / "savepoint.json").unlink()
    files.put(3)
    files.run("saved")
    if is_finished:
        (tmp_path / "saved" / "savepoint.json").write_bytes(content)
    else:
        (tmp_path / "saved" / "savepoint.unfinished").write_bytes(b"0123456789abcdef 3")
    files.put(4)
    files.run("saved")
    assert batches(tmp_path / "saved", "commits")[-2:] == [3, 4]
    assert files.users() == list(range(5))
    if is_finished:
        assert main(["savepoint", "list", str(tmp_path)]) == 1
