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
    return written(quick_path / "query", 2, operators=(0,))


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
    assert "is a savepoint, and only checkpoints are repaired" in capsys.readouterr().err
    assert main(["checkpoint", "repair", f"{query.location}/state"]) == 2
    assert "is not a checkpoint of a query" in capsys.readouterr().err
