"""Where savepoints and restores write and delete: folders that are in use, not empty or another's stay as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.offline.reading import open_state
from pyspark_ckpt.state_store.blobs import Blob, LocalPlace, place_at
from pyspark_ckpt.state_store.errors import ConflictError, FormatError, InvalidInputError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.deletion import delete, refuse_others
from pyspark_ckpt.state_store.savepoints.nesting import is_within
from pyspark_ckpt.state_store.savepoints.savepoint import Kind, Savepoint
from tests.labs.lab import QUERY
from tests.labs.saved_query import SAVEPOINT_KINDS, Query, files, find_step, stored, written


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


def test_locations_may_be_path_objects(quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(2,), batches=1)
    savepoints.savepoint(Path(query.location), quick_path / "taken")
    assert savepoints.restore(quick_path / "taken", quick_path / "restored", parallelism=3).partitions == 3
    assert savepoints.restore(quick_path / "restored", quick_path / "rescaled", parallelism=1).partitions == 1
    with open_state(quick_path / "rescaled") as state:
        assert state.version == 1


UNTYPED: Any = savepoints
UNTYPED_READER: Any = open_state


@pytest.mark.parametrize(
    ("act", "problem"),
    [
        (lambda: UNTYPED.savepoint(None, "/to"), "query_or_checkpoint is None, of type NoneType"),
        (lambda: UNTYPED.savepoint("", "/to"), "query_or_checkpoint is '', of type str"),
        (lambda: UNTYPED.savepoint("/from", 5), "target is 5, of type int"),
        (
            lambda: UNTYPED.stop_with_savepoint("/from", "/to"),
            "query must be a running StreamingQuery, got '/from' of type str",
        ),
        (lambda: UNTYPED.restore(b"/from", "/to"), "savepoint_or_checkpoint is b'/from', of type bytes"),
        (lambda: UNTYPED.restore("/from", None), "checkpoint_location is None"),
        (
            lambda: UNTYPED.restore("/from", "/to", uid_map=["a"]),
            r"`uid_map` must be a mapping, got \['a'\] of type list",
        ),
        (lambda: UNTYPED_READER("/from", version="3"), "version must be an integer, got '3' of type str"),
        (lambda: UNTYPED_READER("/from", options=["x"]), r"options must be a mapping, got \['x'\] of type list"),
        (lambda: UNTYPED_READER(None), "path is None, of type NoneType. Give a path or a URL."),
    ],
)
def test_what_is_no_location_is_refused_by_name(act: Callable[[], object], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        act()


def test_a_target_that_is_not_empty_stays_as_it_is(quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(2,), batches=1)
    savepoints.savepoint(query.location, str(quick_path / "taken"))
    target = quick_path / "used"
    (target / "deep").mkdir(parents=True)
    (target / "deep" / "file").write_text("mine")
    for act in (
        lambda: savepoints.savepoint(query.location, str(target)),
        lambda: savepoints.restore(str(quick_path / "taken"), str(target)),
        lambda: savepoints.restore(query.location, str(target), parallelism=3),
    ):
        with pytest.raises(InvalidInputError, match="is not empty: it has deep/file"):
            act()
    assert files(target) == {"deep/file": b"mine"}


def at_first_look(monkeypatch: pytest.MonkeyPatch, target: Path, happen: Callable[[], object]) -> None:
    """Let something happen right after the first check that ``target`` is empty."""
    walk, looks = LocalPlace.walk, iter([1])

    def walked(place: LocalPlace, folder: str = "") -> Any:  # noqa: ANN401
        found = walk(place, folder)
        if place.url == str(target) and next(looks, None):
            happen()
        return found

    monkeypatch.setattr(LocalPlace, "walk", walked)


@pytest.mark.parametrize("is_through", [False, True])
def test_of_two_savepoints_in_one_target_the_second_is_refused(
    is_through: bool,  # noqa: FBT001
    quick_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query, target = written(quick_path / "query", 1, operators=(1,), batches=1), quick_path / "taken"

    def other() -> None:
        if is_through:
            savepoints.savepoint(query.location, str(target))
            query.run()
        else:
            LocalPlace(target).put_if_absent("savepoint.unfinished", b"")

    at_first_look(monkeypatch, target, other)
    kind = InvalidInputError if is_through else ConflictError
    with pytest.raises(
        kind, match="is not empty: it is a savepoint" if is_through else "Another savepoint is being taken"
    ):
        savepoints.savepoint(query.location, str(target))
    if is_through:
        assert main(["savepoint", "verify", str(target)]) == 0
    assert (target / "savepoint.unfinished").exists() != is_through, "it is the other's"


@pytest.mark.parametrize("is_through", [False, True])
def test_of_two_restores_into_one_target_the_second_is_refused(
    is_through: bool,  # noqa: FBT001
    quick_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query, target = written(quick_path / "query", 1, operators=(2,), batches=1), quick_path / "restored"

    def other() -> None:
        with monkeypatch.context() as patched:
            if not is_through:
                patched.setattr(
                    "pyspark_ckpt.state_store.savepoints.restoring.query_restore.copy_logs", lambda *_: 1 / 0
                )
            with nullcontext() if is_through else pytest.raises(ZeroDivisionError):
                savepoints.restore(query.location, str(target), parallelism=2)
        before.update(files(target))

    before: dict[str, bytes] = {}
    at_first_look(monkeypatch, target, other)
    with pytest.raises(InvalidInputError, match=r"and this is another|is now a checkpoint, or the target of another"):
        savepoints.restore(query.location, str(target), parallelism=3)
    assert files(target) == before
    if not is_through:
        savepoints.restore(query.location, str(target), parallelism=2)
    assert stored(str(target)) == (query.version, 2, query.rows)


def test_nobody_is_told_to_delete_a_checkpoint(quick_path: Path) -> None:
    query = written(quick_path / "query", 1, operators=(1,), batches=1)
    with pytest.raises(InvalidInputError, match="is not a savepoint") as refused:
        savepoints.restore(query.location, str(quick_path / "restored"), claim="claim")
    assert "delete" not in refused.value.hint


def test_a_restore_never_goes_on_where_another_query_has_begun(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = written(quick_path / "query", 2, operators=(2,), batches=1)
    target = quick_path / "restored"
    with monkeypatch.context() as patched:
        patched.setattr(find_step("copy_logs"), lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            savepoints.restore(query.location, str(target), parallelism=3)
    LocalPlace(target).put("metadata", b'{"id":"another"}')
    before = files(target)
    with pytest.raises(InvalidInputError, match="is now a checkpoint, or the target of another"):
        savepoints.restore(query.location, str(target), parallelism=3)
    assert files(target) == before


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
    on.__dict__.update(query.__dict__, location=str(saved), metas=dict(query.metas), rows=dict(query.rows))
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


@pytest.mark.parametrize(
    "form",
    [
        "{}/taken",
        "{}/state/taken",
        "{}",
        "{}/",
        "file:{}/taken",
        "file://{}//taken/",
        "{}/x/../taken",
        "{}/../link/taken",
    ],
)
@pytest.mark.parametrize("apart", [False, True])
def test_a_savepoint_inside_of_the_checkpoint_that_it_is_of_is_refused(
    form: str,
    apart: bool,  # noqa: FBT001
    quick_path: Path,
) -> None:
    options = {"remote": str(quick_path / "apart")} if apart else {}
    query = written(quick_path / "query", 2, operators=(1,), batches=1, remote=options.get("remote", ""))
    outer = quick_path / "apart" / QUERY if apart else Path(query.location)
    (outer.parent / "link").symlink_to(outer)
    before = files(quick_path)
    with pytest.raises(InvalidInputError):
        savepoints.savepoint(query.location, form.format(outer), options=options)
    assert files(quick_path) == before


def test_a_savepoint_that_would_hold_its_checkpoint_is_refused(quick_path: Path) -> None:
    query = written(quick_path / "all" / "query", 2, operators=(1,), batches=1)
    before = files(quick_path)
    with pytest.raises(InvalidInputError, match="query is inside"):
        savepoints.savepoint(query.location, str(quick_path / "all"))
    assert files(quick_path) == before


def test_a_savepoint_is_refused_when_another_name_hides_that_it_is_inside(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as two name services of one HDFS, or a folder that is mounted twice."""
    query = written(quick_path / "query", 2, operators=(1,), batches=1)
    before = files(quick_path)
    monkeypatch.setattr("pyspark_ckpt.state_store.savepoints.creation.refuse_nested", lambda *_: None)
    with pytest.raises(InvalidInputError, match=r"is inside .*: it is saved/taken/savepoint.unfinished there"):
        savepoints.savepoint(query.location, f"{query.location}/saved/taken")
    assert files(quick_path) == before


@pytest.mark.parametrize(
    ("inner", "outer", "is_so"),
    [
        ("s3a://bucket/ck/taken", "s3://bucket/ck", True),
        ("s3n://bucket/ck/", "s3a://bucket/ck", True),
        ("s3://bucket/checkpoint", "s3://bucket/check", False),
        ("s3://other/ck/taken", "s3://bucket/ck", False),
        ("file:/tmp/ck/taken", "/tmp/ck", True),
        ("/tmp/ck/../taken", "/tmp/ck", False),
        ("/tmp/other/../ck/taken", "file:///tmp/ck/", True),
    ],
)
def test_a_folder_is_inside_of_another_by_any_of_its_names(inner: str, outer: str, is_so: bool) -> None:  # noqa: FBT001
    assert is_within(place_at(inner), place_at(outer).url) == is_so
