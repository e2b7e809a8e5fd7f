"""Where savepoints and restores write and delete: what is in use, not empty or another's stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli import main
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoint import Kind, Savepoint
from pyspark_ckpt.state_store.savepoint_deletion import delete
from tests.saved_query import SAVEPOINT_KINDS, files, stored, written


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
    with pytest.raises(InvalidInputError, match="inside of"):
        savepoints.restore(str(saved), str(saved / "restored"), claim="claim")
    with pytest.raises(InvalidInputError, match="claim is 'steal'"):
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


def test_a_target_that_is_not_empty_stays_as_it_is(quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(2,), batches=1)
    savepoints.savepoint(query.location, str(quick_path / "taken"))
    target = quick_path / "used"
    (target / "deep").mkdir(parents=True)
    (target / "deep" / "file").write_text("mine")
    for act in (
        lambda: savepoints.savepoint(query.location, str(target)),
        lambda: savepoints.restore(str(quick_path / "taken"), str(target)),
        lambda: savepoints.rescale(query.location, str(target), 3),
    ):
        with pytest.raises(InvalidInputError, match="is not empty: it has deep/file"):
            act()
    assert files(target) == {"deep/file": b"mine"}


def at_first_look(monkeypatch: pytest.MonkeyPatch, target: Path, happen: Callable[[], object]) -> None:
    """Let something happen right behind the first look whether ``target`` is empty."""
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
    words = "is not empty: it has" if is_through else "Another savepoint is being taken"
    with pytest.raises(InvalidInputError, match=words):
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
                patched.setattr("pyspark_ckpt.state_store.restoration.copy_logs", lambda *_: 1 / 0)
            with nullcontext() if is_through else pytest.raises(ZeroDivisionError):
                savepoints.rescale(query.location, str(target), 2)
        before.update(files(target))

    before: dict[str, bytes] = {}
    at_first_look(monkeypatch, target, other)
    with pytest.raises(InvalidInputError, match=r"and this is another|of another query by now"):
        savepoints.rescale(query.location, str(target), 3)
    assert files(target) == before
    if not is_through:
        savepoints.rescale(query.location, str(target), 2)
    assert stored(str(target)) == (query.version, 2, query.rows)


def test_nobody_is_told_to_delete_a_checkpoint(quick_path: Path) -> None:
    query = written(quick_path / "query", 1, operators=(1,), batches=1)
    with pytest.raises(InvalidInputError, match="is no savepoint") as refused:
        savepoints.restore(query.location, str(quick_path / "restored"))
    assert "delete" not in refused.value.hint


def test_a_restore_never_goes_on_where_another_query_has_begun(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = written(quick_path / "query", 2, operators=(2,), batches=1)
    target = quick_path / "restored"
    with monkeypatch.context() as patched:
        patched.setattr("pyspark_ckpt.state_store.restoration.copy_logs", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            savepoints.rescale(query.location, str(target), 3)
    LocalPlace(target).put("metadata", b'{"id":"another"}')
    before = files(target)
    with pytest.raises(InvalidInputError, match="is the checkpoint of another query by now"):
        savepoints.rescale(query.location, str(target), 3)
    assert files(target) == before


@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
def test_nothing_is_left_below_the_folder_of_a_savepoint_that_was_deleted(kind: Kind, quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(0,), batches=1)
    savepoints.savepoint(query.location, str(quick_path / "all" / "taken"), kind=kind)
    (quick_path / "all" / "empty").mkdir()
    assert main(["savepoint", "delete", str(quick_path / "all" / "taken")]) == 0
    assert sorted(path.name for path in (quick_path / "all").rglob("*")) == ["empty", "taken"]
