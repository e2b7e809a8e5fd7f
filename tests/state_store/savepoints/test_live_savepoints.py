"""What looks like an unfinished savepoint may be in use: one that is being taken, or the checkpoint of a query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.errors import ConflictError, InvalidInputError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.deletion import delete
from pyspark_ckpt.state_store.savepoints.savepoint import Savepoint, refuse_unless_empty
from tests.labs.saved_query import Query, files, written

CREATION = "pyspark_ckpt.state_store.savepoints.creation"
WAIT = "If it is still being taken, wait."


def meanwhile(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], object], *, first: bool = False) -> None:
    """Do something just before, or right after, a step of taking a savepoint."""
    original = __import__(CREATION, fromlist=[step]).__dict__[step]

    def stepped(*args: object, **more: object) -> object:
        if first:
            act()
        done = original(*args, **more)
        if not first:
            act()
        return done

    monkeypatch.setattr(f"{CREATION}.{step}", stepped)


@pytest.mark.parametrize("step", ["copy_logs", "_copy_stores", "copy_operators", "copy_id", "read_partitions", "seal"])
def test_a_savepoint_that_is_deleted_while_it_is_taken_fails_and_what_is_left_can_be_deleted(
    step: str, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, target = written(quick_path / "query", 1, operators=(1,), batches=2), quick_path / "taken"
    meanwhile(monkeypatch, step, lambda: delete(str(target), parse({})))
    with pytest.raises(ConflictError, match=f"{target} was deleted while it was being taken") as failed:
        savepoints.savepoint(query.location, str(target))
    left = files(target)
    assert ("savepoint delete" in failed.value.hint) == bool(left)
    assert "savepoint.json" not in left
    if left:
        assert delete(str(target), parse({})) > 0
    assert files(target) == {}


@pytest.mark.parametrize("is_before", [True, False])
def test_a_savepoint_that_is_deleted_as_it_is_finished_is_no_savepoint(
    is_before: bool,  # noqa: FBT001
    quick_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Right before, or right after, savepoint.json is written."""
    query, target = written(quick_path / "query", 1, operators=(1,), batches=2), quick_path / "taken"
    put_if_absent = LocalPlace.put_if_absent

    def deleted(place: LocalPlace, name: str, data: bytes) -> bool:
        if name == "savepoint.json" and is_before:
            delete(str(target), parse({}))
        is_new = put_if_absent(place, name, data)
        if name == "savepoint.json" and not is_before:
            delete(str(target), parse({}))
        return is_new

    monkeypatch.setattr(LocalPlace, "put_if_absent", deleted)
    with pytest.raises(ConflictError, match="was deleted while it was being taken"):
        savepoints.savepoint(query.location, str(target))
    assert files(target) == {}


def test_a_savepoint_that_is_finished_before_its_deletion_begins_is_kept(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, target = written(quick_path / "query", 1, operators=(1,), batches=2), quick_path / "taken"
    savepoints.savepoint(query.location, str(target))
    finished = (target / "savepoint.json").read_bytes()
    (target / "savepoint.json").unlink()
    (target / "savepoint.unfinished").write_bytes(b"0123456789abcdef 2")
    put = LocalPlace.put

    def marked(place: LocalPlace, name: str, data: bytes) -> None:
        if name == "savepoint.unfinished":
            put(place, "savepoint.json", finished)
        put(place, name, data)

    with monkeypatch.context() as patched:
        patched.setattr(LocalPlace, "put", marked)
        with pytest.raises(ConflictError, match="a savepoint was finished there meanwhile"):
            delete(str(target), parse({}))
    assert not Savepoint(str(target), parse({})).verify_files()
    assert delete(str(target), parse({})) > 0
    assert files(target) == {}


def test_a_deletion_that_is_refused_leaves_the_mark_of_the_writer(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, put = LocalPlace(quick_path / "taken"), LocalPlace.put
    target.put("savepoint.unfinished", b"0123456789abcdef 2")

    def marked(place: LocalPlace, name: str, data: bytes) -> None:
        put(place, name, data)
        if name == "savepoint.unfinished" and data.startswith(b"deleting"):
            put(place, "mine.txt", b"")

    monkeypatch.setattr(LocalPlace, "put", marked)
    with pytest.raises(InvalidInputError, match=r"has more than a savepoint, mine\.txt"):
        delete(target.url, parse({}))
    assert target.get("savepoint.unfinished") == b"0123456789abcdef 2"


def test_everything_that_finds_a_savepoint_that_is_being_taken_says_to_wait(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, target = written(quick_path / "query", 1, operators=(1,), batches=2), quick_path / "all" / "taken"
    told: list[str] = []

    def ask() -> None:
        for act in (
            lambda: refuse_unless_empty(LocalPlace(target), "a savepoint"),
            lambda: refuse_unless_empty(LocalPlace(target.parent), "a savepoint"),
            lambda: Checkpoint(str(target), parse({})),
            lambda: savepoints.restore(str(target), str(quick_path / "restored")),
        ):
            with pytest.raises(InvalidInputError) as refused:
                act()
            told.append(refused.value.hint)

    meanwhile(monkeypatch, "_copy_stores", ask)
    savepoints.savepoint(query.location, str(target))
    assert [hint.index(WAIT) < hint.index(f"savepoint delete {target}") for hint in told] == [True] * 4
    LocalPlace(quick_path / "half").put("savepoint.unfinished", b"deleting 2")
    with pytest.raises(InvalidInputError) as half:
        Checkpoint(str(quick_path / "half"), parse({}))
    assert half.value.hint == f"Remove it: `pyspark-ckpt savepoint delete {quick_path / 'half'}`."


def interrupted(query: Query, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A savepoint that lacks nothing but savepoint.json."""

    def stop() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        meanwhile(patched, "copy_id", stop)
        with pytest.raises(KeyboardInterrupt):
            savepoints.savepoint(query.location, str(target))


@pytest.mark.parametrize("batches", [1, 4])
def test_a_query_that_was_started_in_an_unfinished_savepoint_is_not_deleted_with_it(
    batches: int, quick_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    query, target = written(quick_path / "query", 2, batches=batches), quick_path / "taken"
    for batch in range(batches - 1):
        (Path(query.location) / "commits" / str(batch)).unlink()
    interrupted(query, target, monkeypatch)
    query.location = str(target)
    query.run()
    before = files(target)
    for command in (
        ["checkpoint", "verify", str(target)],
        ["savepoint", "create", f"{quick_path / 'query'}", str(target)],
        ["savepoint", "restore", str(target), str(quick_path / "restored")],
    ):
        assert main(command) == 2
        told = capsys.readouterr().err
        assert "A query was started in this folder: keep it." in told
        assert "savepoint delete" not in told
    assert main(["savepoint", "delete", str(target)]) == 2
    assert "a query was started here" in capsys.readouterr().err
    assert files(target) == before
    (target / "savepoint.unfinished").unlink()
    assert main(["checkpoint", "verify", str(target)]) == 0
