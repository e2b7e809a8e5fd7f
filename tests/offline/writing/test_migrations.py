"""Migrations are made once, in their order, and can be tried before; their names go with the state."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt import writing
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.savepoints import restore, savepoint
from pyspark_ckpt.state_store.blobs import place_at
from pyspark_ckpt.state_store.checkpoints.query.migrations import read_migrations
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.writing import dry_run, write_state

N = ckpt.ValueState("n", "long")
WRONG: Any = writing.Migration  # from Python, which does not check types
ROWS = pa.table({"user": ["a", "b", "c"], "value": [1, 2, 3]})


def _double(rows: pa.Table) -> pa.Table:
    return rows.set_column(1, "value", pc.multiply(rows["value"], 2))


DOUBLED = writing.Migration("double", [writing.Transform("u", "n", _double)])
RENAMED = writing.Migration("rename", [writing.Rename("u", "m", "n"), writing.Rename("u", "v")])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A savepoint of a query that has never run."""
    write_state(None, tmp_path / "saved", [writing.Put("u", N, ROWS, key="user string")], parallelism=2)
    return tmp_path / "saved"


def _values(location: Path, uid: str, name: str) -> dict[str, int]:
    with open_state(location, uid=uid, state=name) as state:
        return {row["key"]["user"]: row["value"] for row in state.to_arrow().to_pylist()}


def _names(location: Path) -> list[str]:
    return [each.name for each in read_migrations(place_at(str(location)))]


def test_each_is_made_once_wherever_the_state_goes(saved: Path, tmp_path: Path) -> None:
    write_state(saved, tmp_path / "first", [DOUBLED])
    restore(tmp_path / "first", tmp_path / "query", parallelism=3)
    ckpt.restore(tmp_path / "query", tmp_path / "rescaled", parallelism=2)
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
    told = dry_run(
        saved, [DOUBLED, writing.Put("u", ckpt.ValueState("more", "string"), more), RENAMED, writing.Drop("v", "more")]
    )
    (state,) = told.states
    assert (state.uid, state.name, state.outcome, state.former) == ("v", "m", "written", "u/n")
    assert (state.rows_before, state.rows_after) == (3, 3)
    assert state.sample is not None
    assert sorted(state.sample["value"].to_pylist()) == [2, 4, 6]
    assert told.migrations == ("double", "rename")
    assert "v/m: written, 3 rows before, 3 after, formerly u/n" in str(told)
    stays, dropped = (dry_run(saved, given).states[0] for given in ([], [writing.Drop("u", "n")]))
    assert (stays.outcome, stays.rows_after) == ("stays", 3)
    assert (dropped.outcome, dropped.rows_before, dropped.rows_after) == ("dropped", 3, 0)
    with pytest.raises(InvalidInputError, match="does not fit the type"):
        dry_run(saved, [writing.Put("u", "n", more)])
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([RENAMED, DOUBLED], "Migration 'rename' comes before 'double', which was applied already"),
        ([RENAMED, writing.Migration("rename", [])], "Two migrations have the name 'rename'"),
        ([writing.Migration("", [])], "has the name ''"),
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


@pytest.mark.parametrize("kind", ["canonical", "native"])
def test_a_savepoint_whose_migrations_are_gone_or_of_another_is_refused(kind: Any, saved: Path, tmp_path: Path) -> None:  # noqa: ANN401
    write_state(saved, tmp_path / "first", [DOUBLED])
    restore(tmp_path / "first", tmp_path / "query")
    savepoint(tmp_path / "query", tmp_path / "again", kind=kind)
    write_state(saved, tmp_path / "other", [writing.Migration("other", [])])
    file = tmp_path / "again" / "_ckpt" / "migrations.json"
    kept = file.read_bytes()
    file.unlink()
    for call in (dry_run, lambda *given: write_state(given[0], tmp_path / "no", given[1])):
        with pytest.raises(NotFoundError, match=r"migrations.json is missing: the savepoint was taken with it"):
            call(tmp_path / "again", [DOUBLED])
        file.write_bytes((tmp_path / "other" / "_ckpt" / "migrations.json").read_bytes())
        with pytest.raises(FormatError, match=r"migrations.json is damaged: it has changed since the savepoint"):
            call(tmp_path / "again", [DOUBLED])
        file.unlink()
    file.write_bytes(kept)
    assert dry_run(tmp_path / "again", [DOUBLED]).migrations == ()
    assert not (tmp_path / "no").exists()


def test_damaged_migrations_of_a_checkpoint_are_found_and_not_copied(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_state(saved, tmp_path / "first", [DOUBLED])
    restore(tmp_path / "first", tmp_path / "query", parallelism=2)
    file = tmp_path / "query" / "_ckpt" / "migrations.json"
    content = bytearray(file.read_bytes())
    content[12] ^= 1
    file.write_bytes(content)
    assert main(["checkpoint", "verify", str(tmp_path / "query")]) == 1
    assert "migrations.json" in capsys.readouterr().out
    for copy in (
        lambda target: savepoint(tmp_path / "query", target),
        lambda target: savepoint(tmp_path / "query", target, kind="canonical"),
        lambda target: ckpt.restore(tmp_path / "query", target, parallelism=3),
        lambda target: ckpt.moving.branch(tmp_path / "query", target),
    ):
        with pytest.raises(FormatError, match=r"migrations.json"):
            copy(tmp_path / "target")
        shutil.rmtree(tmp_path / "target", ignore_errors=True)


def test_an_operator_whose_states_were_dropped_begins_anew(saved: Path, tmp_path: Path) -> None:
    drop = writing.Migration("drop", [writing.Drop("u")])
    put = writing.Migration("put", [writing.Put("u", N, ROWS.slice(1), key="user string")])
    write_state(saved, tmp_path / "together", [drop, put])
    write_state(saved, tmp_path / "first", [drop])
    told = dry_run(tmp_path / "first", [drop, put])
    assert [(each.uid, each.outcome, each.rows_after) for each in told.states] == [("u", "written", 2)]
    write_state(tmp_path / "first", tmp_path / "apart", [drop, put])
    assert _values(tmp_path / "together", "u", "n") == _values(tmp_path / "apart", "u", "n") == {"b": 2, "c": 3}
    restore(tmp_path / "apart", tmp_path / "query", parallelism=3)
    stream = ckpt.testing.keyed("user string", by="user", uid="u", folder=tmp_path / "h", savepoint=tmp_path / "apart")
    with stream.process(_Counts(), "user string, n long") as harness:
        assert sorted(harness.run([("b",), ("z",)])) == [("b", 3), ("z", 1)]


class _Counts(ckpt.KeyedProcessor):
    """Counts rows."""

    n = ckpt.ValueState("n", "long", default=0)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Any) -> Any:  # noqa: ANN401
        """Outputs the count."""
        self.n.update(self.n.value() + len(rows))
        yield key.user, self.n.value()


def test_states_that_are_renamed_and_put_are_told_by_what_they_were(tmp_path: Path) -> None:
    a, b = (ckpt.ValueState(name, "long") for name in "ab")
    write_state(
        None,
        tmp_path / "saved",
        [writing.Put("u", b, ROWS.slice(1), key="user string"), writing.Put("u", a, ROWS)],
        parallelism=1,
    )
    moved: list[writing.Change] = [
        writing.Rename("u", "c", "a"),
        writing.Rename("u", "a", "b"),
        writing.Put("u", "a", ROWS.slice(2)),
    ]
    told = dry_run(tmp_path / "saved", moved)
    assert {(e.name, e.outcome, e.former, e.rows_before, e.rows_after) for e in told.states} == {
        ("c", "stays", "u/a", 3, 3),
        ("a", "written", "u/b", 2, 1),
    }
    told = dry_run(tmp_path / "saved", [writing.Put("u", "a", ROWS.slice(2)), writing.Rename("u", "v")])
    assert {(e.uid, e.name, e.outcome, e.former) for e in told.states} == {
        ("v", "a", "written", "u/a"),
        ("v", "b", "stays", "u/b"),
    }


@pytest.mark.parametrize("make", [lambda: iter(ROWS.to_batches()), ROWS.to_reader])
def test_rows_that_can_be_read_once_are_not_used_up(make: Any, saved: Path, tmp_path: Path) -> None:  # noqa: ANN401
    put = [writing.Put("u", "n", make())]
    with pytest.raises(InvalidInputError, match="can be read only once"):
        dry_run(saved, put)
    write_state(saved, tmp_path / "target", put)
    assert _values(tmp_path / "target", "u", "n") == {"a": 1, "b": 2, "c": 3}


def test_elements_and_single_copies_are_counted(tmp_path: Path) -> None:
    items = pa.table({"user": ["a", "a", "b"], "index": [0, 1, 0], "value": [1, 2, 3]})
    rules = pa.table({"key": ["x"], "value": [1]})
    put = [
        writing.Put("u", ckpt.ListState("items", "long"), items, key="user string"),
        writing.Put("u", ckpt.BroadcastState("rules", "string", "long"), rules),
    ]
    write_state(None, tmp_path / "saved", put, parallelism=3)
    restore(tmp_path / "saved", tmp_path / "query")
    for source in ("saved", "query"):
        same = [writing.Transform("u", name, lambda rows: rows) for name in ("items", "rules")]
        told = dry_run(tmp_path / source, same)
        assert {(e.name, e.rows_before, e.rows_after) for e in told.states} == {("items", 3, 3), ("rules", 1, 1)}
        stays = {e.name: (e.rows_before, e.rows_after) for e in dry_run(tmp_path / source, []).states}
        assert stays == {"items": (5, 5), "rules": (1, 1)}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([writing.Migration("x", [42])], r"has \[42\] of type list as its changes"),  # type: ignore[list-item]
        ([writing.Migration("x" * 1001, [])], "give it a text of 1 to 1000 characters"),
        ([writing.Migration("x\ud800", [])], "give it a text of 1 to 1000 characters"),
        ([writing.Migration("a", []), writing.Migration(WRONG, [])], "give it a text of 1 to 1000 characters"),
        ([writing.Rename("u", "x\ud800")], "give a uid"),
        ([writing.Rename("u", "x\ud800", "n")], "a name is Unicode text that is not empty"),
    ],
)
def test_names_that_cannot_be_kept_are_refused(given: Any, said: str, saved: Path, tmp_path: Path) -> None:  # noqa: ANN401
    for call in (dry_run, lambda *all_given: write_state(all_given[0], tmp_path / "no", all_given[1])):
        with pytest.raises(InvalidInputError, match=said):
            call(saved, given)
    assert not (tmp_path / "no").exists()


def test_what_is_new_is_explained_for_its_parallelism() -> None:
    lists = pa.table({"partition": [3], "index": [0], "value": ["x"]})
    state = ckpt.OperatorListState("l", "string")
    put = [writing.Put("u", state, lists, key="user string", max_parallelism=100)]
    assert dry_run(None, put, parallelism=4).states[0].rows_after == 1
    with pytest.raises(InvalidInputError, match="must be 0 to 1"):
        dry_run(None, put, parallelism=2)
    with pytest.raises(InvalidInputError, match="has max_parallelism 100, but the savepoint has the parallelism 200"):
        dry_run(None, put)
    with pytest.raises(InvalidInputError, match="the changes put no rows into it"):
        dry_run(None, [])
    with pytest.raises(InvalidInputError, match="`samples` must be"):
        dry_run(None, put, samples=-1)
