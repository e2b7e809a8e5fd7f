"""Migrations are made once, in their order, and can be tried before; their names go with the state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt import changes, explain_changes, open_state, restore, savepoint, write_state
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.blobs import place_at
from pyspark_ckpt.state_store.checkpoints.query.migrations import read_migrations
from pyspark_ckpt.state_store.errors import InvalidInputError

N = ckpt.ValueState("n", "long")
WRONG: Any = changes.Migration  # from Python, which does not check types
ROWS = pa.table({"user": ["a", "b", "c"], "value": [1, 2, 3]})


def _double(rows: pa.Table) -> pa.Table:
    return rows.set_column(1, "value", pc.multiply(rows["value"], 2))


DOUBLED = changes.Migration("double", [changes.Transform("u", "n", _double)])
RENAMED = changes.Migration("rename", [changes.Rename("u", "m", "n"), changes.Rename("u", "v")])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A savepoint of a query that has never run."""
    write_state(None, tmp_path / "saved", [changes.Put("u", N, ROWS, key="user string")], parallelism=2)
    return tmp_path / "saved"


def _values(location: Path, uid: str, name: str) -> dict[str, int]:
    with open_state(location, uid=uid, state=name) as state:
        return {row["key"]["user"]: row["value"] for row in state.to_arrow().to_pylist()}


def _names(location: Path) -> list[str]:
    return [each.name for each in read_migrations(place_at(str(location)))]


def test_each_is_made_once_wherever_the_state_goes(saved: Path, tmp_path: Path) -> None:
    write_state(saved, tmp_path / "first", [DOUBLED])
    restore(tmp_path / "first", tmp_path / "query", parallelism=3)
    ckpt.rescale(tmp_path / "query", tmp_path / "rescaled", 2)
    savepoint(tmp_path / "rescaled", tmp_path / "again")
    assert _names(tmp_path / "again") == ["double"]
    write_state(tmp_path / "again", tmp_path / "second", [DOUBLED, RENAMED])
    assert _values(tmp_path / "second", "v", "m") == {"a": 2, "b": 4, "c": 6}
    assert _names(tmp_path / "second") == ["double", "rename"]
    first, second = read_migrations(place_at(str(tmp_path / "second")))
    assert first.changes == ("transform u/n",)
    assert second.changes == ("rename u/n to m", "rename u to v")
    write_state(tmp_path / "second", tmp_path / "third", [DOUBLED, RENAMED])
    assert _values(tmp_path / "third", "v", "m") == {"a": 2, "b": 4, "c": 6}
    assert main(["savepoint", "verify", str(tmp_path / "third")]) == 0
    assert main(["savepoint", "delete", str(tmp_path / "third")]) == 0
    assert not list((tmp_path / "third").rglob("*.*"))


def test_what_they_would_do_is_told_and_nothing_is_written(saved: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    more = pa.table({"user": ["a"], "value": ["x"]})
    told = explain_changes(
        saved, [DOUBLED, changes.Put("u", ckpt.ValueState("more", "string"), more), RENAMED, changes.Drop("v", "more")]
    )
    (state,) = told.states
    assert (state.uid, state.name, state.outcome, state.former) == ("v", "m", "written", "u/n")
    assert (state.rows_before, state.rows_after) == (3, 3)
    assert state.sample is not None
    assert sorted(state.sample["value"].to_pylist()) == [2, 4, 6]
    assert told.migrations == ("double", "rename")
    assert "v/m: written, 3 rows before, 3 after, formerly u/n" in str(told)
    stays, dropped = (explain_changes(saved, given).states[0] for given in ([], [changes.Drop("u", "n")]))
    assert (stays.outcome, stays.rows_after) == ("stays", 3)
    assert (dropped.outcome, dropped.rows_before, dropped.rows_after) == ("dropped", 3, 0)
    with pytest.raises(InvalidInputError, match="does not fit the type"):
        explain_changes(saved, [changes.Put("u", "n", more)])
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([RENAMED, DOUBLED], "Migration 'rename' comes before 'double', which was made already"),
        ([RENAMED, changes.Migration("rename", [])], "Two migrations have the name 'rename'"),
        ([changes.Migration("", [])], "has the name ''"),
        ([WRONG("x", "drop")], "has 'drop' of type str as its changes"),
        ([WRONG("x", [DOUBLED])], "as its changes"),
        ([WRONG("x", None)], "has None of type NoneType"),
    ],
)
def test_a_wrong_list_is_refused(given: Any, said: str, saved: Path, tmp_path: Path) -> None:  # noqa: ANN401
    write_state(saved, tmp_path / "first", [DOUBLED])
    with pytest.raises(InvalidInputError, match=said):
        write_state(tmp_path / "first", tmp_path / "never", given)
    assert not (tmp_path / "never").exists()
