"""The list of savepoints tells what each is, also beside those that are unfinished or damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from tests.labs.saved_query import Query, written


def test_the_list_tells_what_did_not_finish(quick_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query: Query = written(quick_path / "query", 1, operators=(1,), batches=1)
    savepoints.savepoint(query.location, str(quick_path / "all" / "whole"))
    shutil.copytree(quick_path / "all" / "whole", quick_path / "all" / "nearly")
    (quick_path / "all" / "nearly" / "savepoint.unfinished").touch()
    (quick_path / "all" / "half").mkdir()
    (quick_path / "all" / "half" / "savepoint.unfinished").touch()
    assert main(["savepoint", "list", str(quick_path / "all"), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {each["savepoint"]: "version" in each for each in listed} == {"whole": True, "nearly": True, "half": False}


def test_the_list_goes_on_behind_a_damaged_savepoint(quick_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query: Query = written(quick_path / "query", 1, operators=(1,), batches=1)
    savepoints.savepoint(query.location, str(quick_path / "all" / "whole"))
    for name in ("a damaged one", "zero"):
        shutil.copytree(quick_path / "all" / "whole", quick_path / "all" / name)
    path = quick_path / "all" / "a damaged one" / "savepoint.json"
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":2', 1))
    (quick_path / "all" / "zero" / "savepoint.json").write_bytes(b"")
    assert main(["savepoint", "list", str(quick_path / "all")]) == 1
    rows = {line.partition("  ")[0].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert f"DAMAGED: {path} is damaged: its checksum is wrong" in rows["a damaged one"]
    assert "does not end with its checksum" in rows["zero"]
    assert " UTC" in rows["whole"]
    assert main(["savepoint", "list", str(quick_path / "all"), "--json"]) == 1
    listed = {each["savepoint"]: each for each in json.loads(capsys.readouterr().out)}
    assert listed["a damaged one"] == {
        "savepoint": "a damaged one",
        "place": str(quick_path / "all" / "a damaged one"),
        "damaged": f"{path} is damaged: its checksum is wrong.",
    }
    assert listed["whole"]["version"] == 1
