"""Folders that a user may not enter, and links that lead nowhere, end in an error that says what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.errors import CkptError, StorageError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.deletion import delete
from tests.faults.permissions import NOBODY, as_nobody
from tests.labs.saved_query import files, written


def test_a_savepoint_in_a_folder_that_may_not_be_entered_names_that_folder(quick_path: Path) -> None:
    query, private = written(quick_path / "query", 1, operators=(1,), batches=1), quick_path / "private"
    savepoints.savepoint(query.location, str(private / "in" / "taken"))
    (quick_path / "link").symlink_to(private / "in")
    private.chmod(0o700)
    restored = str(quick_path / "restored")
    acts: list[Callable[[str], object]] = [
        lambda location: delete(location, parse({})),
        lambda location: savepoints.restore(location, restored, claim="claim"),
        lambda location: savepoints.restore(location, restored),
        lambda location: Checkpoint(location, parse({})),
    ]
    for location in (private / "in" / "taken", quick_path / "link" / "taken"):
        for act in acts:
            with as_nobody(quick_path), pytest.raises(StorageError, match="denied") as refused:
                act(str(location))
            assert refused.value.is_denied
            assert f"Give search (x) permission on {private} to " in refused.value.hint
    private.chmod(0o755)


def test_a_loop_of_links_is_an_error_and_not_followed(quick_path: Path) -> None:
    query, saved = written(quick_path / "query", 1, operators=(1,), batches=1), quick_path / "taken"
    savepoints.savepoint(query.location, str(saved))
    loop = quick_path / "loop"
    loop.symlink_to(loop)
    for where in (loop, loop / "below"):
        for act in (
            lambda where=where: delete(str(where), parse({})),
            lambda where=where: savepoints.savepoint(query.location, str(where)),
            lambda where=where: savepoints.restore(str(saved), str(where)),
            lambda where=where: savepoints.restore(str(where), str(quick_path / "restored"), claim="claim"),
        ):
            with pytest.raises(CkptError):
                act()
    assert "savepoint.json" in files(saved)


def test_a_loop_of_links_does_not_hide_the_savepoints_next_to_it(
    quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = written(quick_path / "query", 1, operators=(1,), batches=1)
    savepoints.savepoint(query.location, str(quick_path / "all" / "taken"))
    (quick_path / "all" / "loop").symlink_to(quick_path / "all" / "loop")
    assert main(["savepoint", "list", str(quick_path / "all")]) == 0
    assert "taken" in capsys.readouterr().out


@pytest.mark.parametrize("mode", [0o000, 0o600], ids=["closed", "files are not to be seen"])
def test_a_folder_of_another_user_does_not_hide_the_savepoints_next_to_it(
    mode: int, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query, folder = written(quick_path / "query", 1, operators=(1,), batches=1), quick_path / "all"
    for name in ("mine", "theirs/taken", "sealed"):
        savepoints.savepoint(query.location, str(folder / name))
    assert main(["savepoint", "list", str(folder)]) == 0  # imports what the other user perhaps may not
    capsys.readouterr()
    assert main(["savepoint", "list", str(folder), "--json"]) == 0
    mine, *_ = json.loads(capsys.readouterr().out)
    (folder / "theirs").chmod(mode)
    (folder / "sealed" / "savepoint.json").chmod(0)
    if mode == 0o600:
        shutil.chown(folder / "theirs", NOBODY)
    with as_nobody(quick_path):
        assert main(["savepoint", "list", str(folder)]) == 1
        told = capsys.readouterr().out
        assert main(["savepoint", "list", str(folder), "--json"]) == 1, capsys.readouterr()
        printed = capsys.readouterr()
        assert printed.out, printed.err
        listed = json.loads(printed.out)
    assert (told.count("UNREADABLE"), told.count("denied")) == (2, 2)
    assert [each for each in listed if "unreadable" not in each] == [mine]
    unreadable = {each["savepoint"]: each["unreadable"] for each in listed if "unreadable" in each}
    assert unreadable.keys() == {"theirs", "sealed"}
    assert all(f"{folder / name}" in why for name, why in unreadable.items())
    (folder / "theirs").chmod(0o755)
    folder.chmod(0)
    with as_nobody(quick_path):
        assert main(["savepoint", "list", str(folder)]) == 1
    assert "Permission denied" in capsys.readouterr().err
    folder.chmod(0o755)
