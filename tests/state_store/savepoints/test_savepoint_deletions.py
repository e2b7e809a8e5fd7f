"""What is deleted with a savepoint: only what is of it, and nothing after a query was started in its folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.blobs import Blob, LocalPlace
from pyspark_ckpt.state_store.errors import ConflictError, FormatError, InvalidInputError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.packs.slots import split_id
from pyspark_ckpt.state_store.savepoints.deletion import delete, refuse_others
from pyspark_ckpt.state_store.savepoints.savepoint import Kind, Savepoint
from tests.labs.saved_query import SAVEPOINT_KINDS, Query, files, stored, written


def test_a_claimed_savepoint_goes_when_the_checkpoint_stands_and_not_before(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = written(quick_path / "query", 2, operators=(0,))
    saved = quick_path / "taken"
    savepoints.savepoint(query.location, str(saved))
    before = files(saved)
    with monkeypatch.context() as patched:
        patched.setattr(Savepoint, "require_all", lambda *_: (_ for _ in ()).throw(FormatError("made up")))
        with pytest.raises(FormatError, match="made up"):
            savepoints.restore(str(saved), str(quick_path / "restored"), claim="claim")
    with pytest.raises(InvalidInputError, match="is inside"):
        savepoints.restore(str(saved), str(saved / "restored"), claim="claim")
    with pytest.raises(InvalidInputError, match=r"claim must be .*, got 'steal'"):
        savepoints.restore(str(saved), str(quick_path / "restored"), claim="steal")  # type: ignore[arg-type]
    assert files(saved) == before
    savepoints.restore(str(saved), str(quick_path / "restored"), claim="claim")
    assert files(saved) == {}
    assert stored(str(quick_path / "restored")) == (query.version, 2, query.rows)


@pytest.mark.parametrize(
    "inside", ["tuesday/metadata", "state/0/tuesday/savepoint.json", "state/0/savepoint.unfinished"]
)
def test_nothing_is_deleted_with_a_savepoint_that_is_not_of_it(inside: str, quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(1,), batches=1)
    saved = quick_path / "taken"
    savepoints.savepoint(query.location, str(saved))
    LocalPlace(saved).put(inside, b"{}")
    before = files(saved)
    for act in (
        lambda: savepoints.restore(str(saved), str(quick_path / "restored"), claim="claim"),
        lambda: delete(str(saved), parse({})),
    ):
        with pytest.raises(InvalidInputError, match=f"has more than a savepoint, {inside}"):
            act()
    assert files(saved) == before
    assert files(quick_path / "restored") == {}


STRANGERS = [
    *(
        "rows/notes.txt",
        "rows/0/left/notes.parquet",
        "state/notes.txt",
        "state/0/notes.txt",
        "state/0/0/left/notes.txt",
    ),
    *("sources/mine/notes.txt", "offsets/notes.txt", "commits/1.bak", "_ckpt/notes.txt", ".env", "state/.env"),
]


def test_no_file_of_a_stranger_is_deleted_with_a_savepoint(quick_path: Path) -> None:
    """Nor with one that did not finish, which does not say what it has."""
    query, saved = written(quick_path / "query", 2, operators=(0,), batches=1), quick_path / "taken"
    savepoints.savepoint(query.location, str(saved))
    seen = LocalPlace(saved).walk()
    for half in (False, True):
        if half:
            (saved / "savepoint.json").unlink()
            (saved / "savepoint.unfinished").write_bytes(b"0123456789abcdef 1")
        for stranger in STRANGERS:
            with pytest.raises(InvalidInputError, match=f"has more than a savepoint, {stranger}"):
                refuse_others(LocalPlace(saved), [*seen, Blob(stranger, 1, 0.0)])
        if not half:
            of_no_store = "state/0/9/left/{:020d}-{}-0.delta".format(1, "a" * 32)
            with pytest.raises(InvalidInputError, match=of_no_store):
                refuse_others(LocalPlace(saved), [*seen, Blob(of_no_store, 1, 0.0)])
        refuse_others(LocalPlace(saved), [*seen, Blob("offsets/.0.crc", 1, 0.0), Blob(".metadata.crc", 1, 0.0)])
    LocalPlace(saved).put("rows/notes.txt", b"mine")
    before = files(saved)
    assert main(["savepoint", "delete", str(saved)]) == 2
    assert files(saved) == before


def test_what_is_behind_a_link_is_neither_deleted_nor_taken_for_the_own(quick_path: Path) -> None:
    query, saved = written(quick_path / "query", 2, operators=(0,), batches=1), quick_path / "taken"
    before = files(Path(query.location))
    (quick_path / "linked").mkdir()
    (quick_path / "linked" / "state").symlink_to(Path(query.location) / "state")
    with pytest.raises(InvalidInputError, match="is not empty: it has state/"):
        savepoints.savepoint(query.location, str(quick_path / "linked"))
    savepoints.savepoint(query.location, str(saved))
    (saved / "state").rename(quick_path / "elsewhere")
    for target in (quick_path / "elsewhere", Path(query.location) / "state"):
        (saved / "state").symlink_to(target)
        with pytest.raises(InvalidInputError, match="has more than a savepoint, state/"):
            delete(str(saved), parse({}))
        assert (saved / "savepoint.json").exists()
        (saved / "state").unlink()
    assert files(Path(query.location)) == before
    (Path(query.location) / "sources" / "0").rename(quick_path / "source")
    (Path(query.location) / "sources" / "0").symlink_to(quick_path / "source")
    with pytest.raises(InvalidInputError, match="sources/0/ is a link to another folder"):
        savepoints.savepoint(query.location, str(quick_path / "without"))


def test_nobody_is_told_to_delete_a_checkpoint(quick_path: Path) -> None:
    query = written(quick_path / "query", 1, operators=(1,), batches=1)
    with pytest.raises(InvalidInputError, match="is not a savepoint") as refused:
        savepoints.restore(query.location, str(quick_path / "restored"), claim="claim")
    assert "delete" not in refused.value.hint


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
def test_nothing_is_left_below_the_folder_of_a_savepoint_that_was_deleted(kind: Kind, quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(0,), batches=1)
    savepoints.savepoint(query.location, str(quick_path / "all" / "taken"), kind=kind)
    (quick_path / "all" / "empty").mkdir()
    assert main(["savepoint", "delete", str(quick_path / "all" / "taken")]) == 0
    assert sorted(path.name for path in (quick_path / "all").rglob("*")) == ["empty", "taken"]


def gone_on(saved: Path, query: Query, batches: int) -> None:
    """Start the query of a savepoint in the savepoint's own folder."""
    on = object.__new__(Query)
    chains = {identity: [split_id(each)[0] for each in chain] for identity, chain in query.chains.items()}
    on.__dict__.update(
        query.__dict__, location=str(saved), metas=dict(query.metas), rows=dict(query.rows), chains=chains
    )
    on.run(batches, snapshots=True)


def marks(query: Query, saved: Path) -> None:
    (saved / "savepoint.unfinished").write_bytes(b"0123456789abcdef %d" % query.version)
    (saved / "savepoint.json").unlink()


def marks_as_earlier_builds(_query: Query, saved: Path) -> None:
    (saved / "savepoint.unfinished").touch()
    (saved / "savepoint.json").unlink()


def damages(_query: Query, saved: Path) -> None:
    (saved / "savepoint.json").write_bytes(b"rubbish")


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("harm", [None, marks, marks_as_earlier_builds, damages])
def test_a_savepoint_in_whose_folder_a_query_has_gone_on_is_not_deleted(
    batches: int, harm: Callable[[Query, Path], None] | None, quick_path: Path
) -> None:
    query, saved = written(quick_path / "query", 2, operators=(0,), batches=3), quick_path / "taken"
    savepoints.savepoint(query.location, str(saved))
    gone_on(saved, query, batches)
    if harm is not None:
        harm(query, saved)
    before = files(saved)
    proof = f"has more than a savepoint, (offsets|commits)/{query.version} .*: a query was started here"
    doubt = "may be the checkpoint of a query that was started here: nothing was deleted"
    with pytest.raises(InvalidInputError, match=proof if harm in (None, marks) else doubt) as refused:
        delete(str(saved), parse({}))
    assert "delete the folder" not in refused.value.hint
    assert main(["savepoint", "delete", str(saved)]) == 2
    assert files(saved) == before


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_the_list_shows_a_savepoint_in_whose_folder_a_query_was_started(
    depth: int, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query, saved = written(quick_path / "query", 2, operators=(0,), batches=3), quick_path / "all" / "taken"
    savepoints.savepoint(query.location, str(saved))
    savepoints.savepoint(query.location, str(quick_path / "all" / "whole"))
    folder = str([saved, *saved.parents][depth])
    assert main(["savepoint", "list", folder]) == 0
    gone_on(saved, query, 1)
    capsys.readouterr()
    assert main(["savepoint", "list", folder]) == 1
    told = capsys.readouterr().out
    assert re.search(rf"taken has offsets/{query.version}, which does not belong to the savepoint: a query", told)
    assert told.count("LIVE CHECKPOINT: ") == 1
    assert main(["savepoint", "list", folder, "--json"]) == 1
    (found,) = [each for each in json.loads(capsys.readouterr().out) if each["place"] == str(saved)]
    assert "a query was started here" in found["live_checkpoint"]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "what",
    [
        "offsets/{version}",
        "commits/{version}",
        "sources/0/{version}",
        "sources/1/0",
        "state/0/_metadata/v2/{version}",
        "state/0/0/left/{next:020d}-{id}-{parent}.delta",
        "state/0/0/left/{next:020d}-{id}.snapshot",
        "state/0/1/right/{version:020d}-0000000001.winner",
        "state/0/0/remote.json",
        "_ckpt/runs/0000000001.run",
        "_ckpt/pins/{version:020d}-001700000000000-{id}.tmp",
    ],
)
def test_whatever_a_query_writes_that_was_started_in_a_savepoint_refuses_its_deletion(
    what: str, quick_path: Path
) -> None:
    kind: Kind = "canonical" if what.startswith("state/0/0/left/{next:020d}-{id}.") else "native"
    query, saved = written(quick_path / "query", 2, operators=(0,), batches=2), quick_path / "taken"
    savepoints.savepoint(query.location, str(saved), kind=kind)
    name = what.format(version=query.version, next=query.version + 1, id="1" * 32, parent="2" * 32)
    LocalPlace(saved).put(name, b"{}")
    before = files(saved)
    for act in (
        lambda: savepoints.restore(str(saved), str(quick_path / "restored"), claim="claim"),
        lambda: delete(str(saved), parse({})),
    ):
        with pytest.raises(InvalidInputError, match=f"has more than a savepoint, {name}"):
            act()
    assert files(saved) == before


def test_a_savepoint_with_a_planned_batch_is_deleted(quick_path: Path) -> None:
    query, saved = written(quick_path / "query", 2, operators=(0,), batches=2), quick_path / "taken"
    query.plan()
    savepoints.savepoint(query.location, str(saved))
    assert (saved / "offsets" / str(query.version)).exists()
    assert delete(str(saved), parse({})) > 0
    assert files(saved) == {}


@pytest.mark.parametrize("after", ["the first look", "the last look"])
def test_a_query_that_begins_while_its_savepoint_is_deleted_is_told_of(
    after: str, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, saved = written(quick_path / "query", 2, operators=(1,), batches=2), quick_path / "taken"
    savepoints.savepoint(query.location, str(saved))
    before, put, remove = files(saved), LocalPlace.put, LocalPlace.delete
    begun = f"offsets/{query.version}"

    def marked(place: LocalPlace, name: str, data: bytes) -> None:
        put(place, name, data)
        if name == "savepoint.unfinished" and after == "the first look":
            put(place, begun, b"planned")

    def removed(place: LocalPlace, name: str) -> None:
        if name == "savepoint.json" and after == "the last look":
            put(place, begun, b"planned")
        remove(place, name)

    with monkeypatch.context() as patched:
        patched.setattr(LocalPlace, "put", marked)
        patched.setattr(LocalPlace, "delete", removed)
        kind = InvalidInputError if after == "the first look" else ConflictError
        with pytest.raises(kind, match=begun):
            delete(str(saved), parse({}))
    left = files(saved)
    assert left.pop(begun) == b"planned"
    if after == "the first look":
        assert left == before, "nothing was deleted"
