"""Errors about missing state: what is missing where, what is there, and where the state is instead."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.offline.reading import open_state
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.checkpoints.missing_state import explain_missing
from pyspark_ckpt.state_store.errors import NotFoundError
from pyspark_ckpt.state_store.identity import Identity
from tests.conftest import MakeLab
from tests.labs.lab import QUERY, CallError
from tests.labs.saved_query import written


def test_a_query_that_was_started_without_the_option_remote_is_found_in_its_checkpoint(
    make_lab: MakeLab, tmp_path: Path
) -> None:
    lab = make_lab()
    lab.name_query()
    (_, last) = lab.grow(lab.open(), 2)
    apart = tmp_path / "apart"
    with pytest.raises(CallError, match="version 2") as caught:
        lab.begin(lab.open(options={"remote": str(apart)}), 2, last)
    assert caught.value.kind == "NotFoundError"
    assert f"{apart}/{QUERY}/state/0/3 has no version at all" in caught.value.message
    assert f"{lab.remote} has versions 1 to 2, and no snapshot: this state is in the checkpoint" in caught.value.message
    assert f"this session has the value '{apart}'" in caught.value.message
    assert caught.value.hint.startswith("Remove spark.sql.streaming.stateStore.ckpt.remote from this session.")
    assert "retired" not in caught.value.message
    assert "minBatchesToRetain" not in caught.value.hint


def test_state_that_is_gone_from_its_remote_place_is_missed_there(
    quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    apart = quick_path / "apart"
    query = written(quick_path / "query", 1, operators=(1,), batches=2, remote=str(apart))
    shutil.rmtree(apart)
    assert main(["checkpoint", "inspect", query.location]) == 1
    told = capsys.readouterr().err
    its = f"{apart}/{QUERY}/state/0/0"
    assert f"{its} has no version at all" in told
    assert f"{query.location}/state/0/0/remote.json says that this state is in {its}, but nothing is there." in told
    assert "retired" not in told
    with pytest.raises(NotFoundError, match="but nothing is there"):
        savepoints.savepoint(query.location, str(quick_path / "taken"))
    with pytest.raises(NotFoundError, match="but nothing is there"):
        open_state(query.location, version=1)


def test_a_version_that_is_newer_than_all_there_was_not_deleted_by_retention(
    quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = written(quick_path / "query", 1, operators=(1,), batches=3, packed=0)
    query.snapshot(Identity(0, 0, "default"))
    folder = Path(query.location) / "state" / "0" / "0"
    for path in folder.glob(f"{3:020d}-*"):
        path.unlink()
    assert main(["checkpoint", "inspect", query.location]) == 1
    told = capsys.readouterr().err
    assert f"its objects are lost: {folder} has versions 1 to 2, and " in told
    assert "Retention cannot have deleted it, because it keeps the newest versions." in told
    assert "restore them from a backup" in told
    assert "minBatchesToRetain" not in told


def test_a_missing_delta_is_told_with_what_is_there(quick_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = written(quick_path / "query", 1, operators=(1,), batches=3)
    folder = Path(query.location) / "state" / "0" / "0"
    for path in [*folder.glob("*.snapshot"), *folder.glob(f"{2:020d}-*.delta")]:
        path.unlink()
    assert main(["savepoint", "create", query.location, str(quick_path / "taken")]) == 1
    told = capsys.readouterr().err
    assert "The delta of version 2" in told
    assert f"{folder} has versions 1 to 3, and no snapshot" in told


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_query_on_the_folder_of_a_savepoint_is_told_what_the_folder_is(
    quick_path: Path,
    is_finished: bool,  # noqa: FBT001
) -> None:
    query, saved = written(quick_path / "query", 1, operators=(1,), batches=1), quick_path / "taken"
    savepoints.savepoint(query.location, str(saved), kind="canonical")
    if not is_finished:
        (saved / "savepoint.json").rename(saved / "savepoint.unfinished")
    place, identity = LocalPlace(saved), Identity(0, 0, "default")
    told = explain_missing(NotFoundError("Gone."), LocalPlace(saved / "state" / "0" / "0"), place, identity, "")
    kind = "a canonical savepoint, on which no query can start" if is_finished else "an unfinished or half-deleted"
    assert told.message.startswith(f"Gone. {saved} is {kind}")
    command = f"savepoint restore {saved} NEW_CHECKPOINT" if is_finished else f"savepoint delete {saved}"
    assert f"`pyspark-ckpt {command}`" in told.hint
