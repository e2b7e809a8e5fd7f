"""``pyspark-ckpt savepoint migrate``: migrations of a module are tried, and made once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt import writing
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.writing import write_state

MODULE = """
import pyarrow.compute as pc
from pyspark_ckpt.offline.writing.drafts.changes import Migration, Rename, Transform

def double(rows):
    return rows.set_column(1, "value", pc.multiply(rows["value"], 2))

ALL = [Migration("double", [Transform("u", "n", double)]), Migration("rename", [Rename("u", "m", "n")])]
FIRST = ALL[:1]
SOME = [*ALL[0].changes]
FAILING = [Migration("fails", [Transform("u", "n", lambda rows: 1 / 0)])]
"""

LOUD = """
import os, sys
from pyspark_ckpt.offline.writing.drafts.changes import Migration, Transform
print("the module")

def tell(rows):
    print("a function")
    os.system("echo a program")
    return rows

def leave(rows):
    sys.exit("not like this")

ALL = [Migration("tells", [Transform("u", "n", tell)])]
LEAVING = [Migration("leaves", [Transform("u", "n", leave)])]
"""


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A savepoint, and beside it a module with migrations in the current folder."""
    rows = pa.table({"user": ["a", "b", "c"], "value": [1, 2, 3]})
    put = writing.Put("u", ckpt.ValueState("n", "long"), rows, key="user string")
    write_state(None, tmp_path / "saved", [put], parallelism=2)
    (tmp_path / "visits").mkdir()
    (tmp_path / "visits" / "steps.py").write_text(MODULE)
    (tmp_path / "visits" / "loud.py").write_text(LOUD)
    (tmp_path / "visits" / "ending.py").write_text("import sys; sys.exit(0)")
    (tmp_path / "visits" / "broken.py").write_text("import no_such_module_at_all")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "saved"
    for name in [each for each in sys.modules if each.partition(".")[0] == "visits"]:
        del sys.modules[name]


def _values(location: Path, name: str) -> list[int]:
    with open_state(location, uid="u", state=name) as state:
        return sorted(state.to_arrow()["value"].to_pylist())


def test_a_dry_run_shows_rows_and_writes_nothing(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["savepoint", "migrate", str(saved), str(tmp_path / "new"), "--migrations", "visits.steps:ALL", "--dry-run"]
    assert main(call) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[:2] == ["migration double", "migration rename"]
    assert told[3].split() == ["u", "m", "u/n", "written", "3", "3"]
    assert next(line.split() for line in told if line.startswith("{"))[2] in ("2", "4", "6")
    assert told[-1] == f"2 migrations to apply to {saved}; nothing was written"
    assert not (tmp_path / "new").exists()
    assert main([*call, "--json", "--samples", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["migrations"] == ["double", "rename"]
    (state,) = found["states"]
    assert len(state.pop("sample")) == 2
    assert state == {
        "uid": "u", "state": "m", "former": "u/n", "outcome": "written", "rows_before": 3, "rows_after": 3,
    }  # fmt: skip


def test_migrations_are_made_once(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["savepoint", "migrate", str(saved), str(tmp_path / "first"), "--migrations", "visits.steps:FIRST"]) == 0
    )
    assert "1 migration applied" in capsys.readouterr().out
    call = [
        "savepoint",
        "migrate",
        str(tmp_path / "first"),
        str(tmp_path / "second"),
        "--migrations",
        "visits.steps:ALL",
        "--json",
    ]
    assert main(call) == 0
    made = json.loads(capsys.readouterr().out)["migrations"]
    assert made == [{"name": "rename", "changes": ["rename u/n to m"]}]
    assert _values(tmp_path / "second", "m") == [2, 4, 6]
    assert (
        main(
            [
                "savepoint",
                "migrate",
                str(tmp_path / "second"),
                str(tmp_path / "third"),
                "--migrations",
                "visits.steps:ALL",
            ]
        )
        == 0
    )
    assert "0 migrations applied" in capsys.readouterr().out
    assert _values(tmp_path / "third", "m") == [2, 4, 6]


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("visits.steps", "--migrations is 'visits.steps', which does not name a list in a module."),
        ("visits/steps.py:ALL", "which does not name a list in a module."),
        (":ALL", "which does not name a list in a module."),
        ("visits.stepz:ALL", "there is no module 'visits.stepz' in"),
        ("nowhere.steps:ALL", "there is no module 'nowhere' in"),
        ("visits.steps:ALLE", "'visits.steps' has no 'ALLE'"),
        ("visits.steps:SOME", "of type list"),
        ("visits.steps:double", "of type function"),
    ],
)
def test_what_is_no_list_of_migrations_is_refused(
    named: str, said: str, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["savepoint", "migrate", str(saved), str(tmp_path / "new"), "--migrations", named]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_errors_of_the_module_and_of_functions_are_those_of_the_user(saved: Path, tmp_path: Path) -> None:
    for named, problem in (("visits.broken:ALL", ModuleNotFoundError), ("visits.steps:FAILING", ZeroDivisionError)):
        with pytest.raises(problem):
            main(["savepoint", "migrate", str(saved), str(tmp_path / "new"), "--migrations", named])


@pytest.mark.in_turn
@pytest.mark.parametrize("size", ["here", "processes"])
def test_what_the_module_and_functions_print_is_not_in_the_json(
    size: str, saved: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if size == "processes":
        monkeypatch.setattr("pyspark_ckpt.savepoints.SMALL_BYTES", 0)
    call = ["savepoint", "migrate", str(saved), str(tmp_path / "new"), "--migrations", "visits.loud:ALL", "--json"]
    for more in (["--dry-run"], []):
        assert main([*call, *more]) == 0
        told = capfd.readouterr()
        assert json.loads(told.out)["savepoint"]
        assert {"a function", "a program"} <= set(told.err.splitlines())


def test_a_module_or_a_function_that_ends_the_program_is_an_error(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["savepoint", "migrate", str(saved), str(tmp_path / "new"), "--migrations"]
    assert main([*call, "visits.ending:ALL"]) == 2
    assert "the module 'visits.ending' ends the program" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert main([*call, "visits.loud:LEAVING"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert "SystemExit: not like this" in told
    assert told[-1].startswith("An unfinished savepoint is left")
