"""Commands that read logs say which entry is damaged, and which command finds the way back."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ckpt.cli.main import main
from tests.labs.saved_query import Query, written

COMMANDS = {
    "list": ["checkpoint", "list", "{0}"],
    "inspect": ["checkpoint", "inspect", "{0}"],
    "branch": ["checkpoint", "branch", "{0}", "{0}-branch"],
    "savepoint": ["savepoint", "create", "{0}", "{0}-savepoint"],
    "state": ["state", "read", "{0}", "--operator", "0", "--store", "left", "--state", "rows"],
    "verify": ["checkpoint", "verify", "{0}"],
    "rescale": ["checkpoint", "rescale", "{0}", "{0}-rescaled", "-n", "3"],
}


@pytest.fixture
def query(quick_path: Path) -> Query:
    return written(quick_path / "query", 2, operators=(0,), packed=0)


@pytest.mark.in_turn
@pytest.mark.parametrize("content", [b"", b"v1\n{", bytes(90)], ids=repr)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["commits/2", "metadata", "state/0/_metadata/metadata"])
def test_a_command_names_the_damaged_entry_and_the_repair(
    name: str, command: str, content: bytes, query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    query.place.put(name, content)
    assert main([each.format(query.location) for each in COMMANDS[command]]) in (1, 2)
    told = "".join(capsys.readouterr())
    assert f"{query.location}/{name}" in told
    assert f"pyspark-ckpt checkpoint repair {query.location}" in told


@pytest.mark.parametrize("command", ["branch", "savepoint", "verify", "rescale"])
def test_a_copy_names_damaged_offsets_and_the_repair(
    command: str, query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    query.place.put("offsets/2", b"")
    assert main([each.format(query.location) for each in COMMANDS[command]]) == 1
    told = "".join(capsys.readouterr())
    assert f"{query.location}/offsets/2 is empty" in told
    assert f"pyspark-ckpt checkpoint repair {query.location}" in told


def test_a_savepoint_is_not_repaired(query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["savepoint", "create", query.location, f"{query.location}-savepoint"]) == 0
    assert main(["checkpoint", "repair", f"{query.location}-savepoint"]) == 2
    assert "is a savepoint, and only checkpoints can be repaired" in capsys.readouterr().err
    assert main(["checkpoint", "repair", f"{query.location}/state"]) == 2
    assert "is not a checkpoint of a query" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["list", "repair"])
@pytest.mark.parametrize("inside", ["state", "commits", "state/0/1/left"])
def test_a_folder_inside_a_checkpoint_is_told_which_that_is(
    inside: str, command: str, query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"{query.location}/{inside}"
    assert main(["checkpoint", command, where]) == 2
    told = capsys.readouterr().err
    assert f"{where} is not a checkpoint of a query. It is inside the checkpoint {query.location}: name" in told


def test_checkpoints_in_a_folder_are_named(quick_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    above = quick_path / "all"
    for name in "abcd":
        written(above / name, 1, batches=1, operators=(0,))
    (above / "0").mkdir()
    (above / "0" / "metadata").write_bytes(b"another program's")
    assert main(["checkpoint", "list", str(above)]) == 2
    assert f"Name a checkpoint in it, such as {above}/a or {above}/b or {above}/c." in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"PK"], ids=repr)
def test_a_delta_that_is_cut_short_is_called_that(
    content: bytes, query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    (name,) = (each.name for each in query.place.walk("state/0/0/left") if "/00000000000000000003-" in each.name)
    query.place.put(name, content)
    why = f"{query.location}/{name} is damaged: it is " + ("too short, with 2 bytes." if content else "empty.")
    for command in (["repair"], ["repair", "--quick"], ["verify"]):
        main(["checkpoint", command[0], query.location, *command[1:]])
        assert why in capsys.readouterr().out
