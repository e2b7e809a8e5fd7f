"""A claim deletes its savepoint only if that is the one that it has restored, and if its target still stands."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.blobs.local.uploads import LocalUpload
from pyspark_ckpt.state_store.errors import CkptError, ConflictError, StorageError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.deletion import delete
from tests.labs.saved_query import files, find_step, stored, written
from tests.state_store.savepoints.replacements import branches, fail, replace, take

pytestmark = pytest.mark.usefixtures("in_this_process")


@pytest.mark.parametrize("there", ["another", "nothing"])
@pytest.mark.parametrize("step", ["copy_operators", "is_complete"])
def test_a_savepoint_that_was_not_restored_is_not_claimed(
    step: str, there: str, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = branches(quick_path, operators=(2,))
    saved, newer, target = quick_path / "saved", quick_path / "newer", quick_path / "target"
    savepoints.savepoint(old.location, saved)
    savepoints.savepoint(new.location, newer)
    original = resolve_name(find_step(step))

    def replaced(*args: object) -> object:
        result = original(*args)
        shutil.rmtree(saved)
        if there == "another":
            replace(saved, newer)
        monkeypatch.setattr(find_step(step), original)
        return result

    monkeypatch.setattr(find_step(step), replaced)
    with pytest.raises(ConflictError, match=f"{saved} was deleted or replaced") as failed:
        savepoints.restore(saved, target, parallelism=3, claim="claim")
    assert files(saved) == (files(newer) if there == "another" else {})
    is_complete = step == "is_complete"
    assert ("is complete: start the query there" in failed.value.hint) is is_complete
    if is_complete:
        assert stored(str(target)) == (3, 3, old.rows)
        assert files(target / "_ckpt") == {}


def test_the_deletion_of_a_claim_looks_once_more_which_savepoint_it_deletes(quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(2,))
    saved = quick_path / "saved"
    expected = savepoints.savepoint(query.location, saved)
    delete(str(saved), parse({}))
    savepoints.savepoint(query.location, saved)
    before = files(saved)
    with pytest.raises(ConflictError, match=r"a savepoint was finished there meanwhile\. Nothing was deleted"):
        delete(str(saved), parse({}), expected)
    assert files(saved) == before


def test_a_claim_keeps_its_savepoint_if_only_its_result_reaches_another_checkpoint(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restore stands still between its last look at the target and the result."""
    old, new = branches(quick_path, operators=(1,))
    saved, target, now = quick_path / "saved", quick_path / "target", dict[str, bytes]()
    before = take(old, saved, "native")
    take(new, quick_path / "newer", "native")
    begin, left = LocalUpload.begin, [target / "_ckpt" / "restore" / "result.json"]

    def begun(upload: LocalUpload) -> None:
        if left and upload._path == left[0]:
            left.clear()
            shutil.rmtree(target)
            savepoints.restore(quick_path / "newer", target)
            now.update(files(target))
        begin(upload)

    monkeypatch.setattr(LocalUpload, "begin", begun)
    with pytest.raises(ConflictError, match=f"{saved} is kept"):
        savepoints.restore(saved, target, claim="claim")
    assert files(saved) == before
    assert files(target) == now


def test_a_claim_looks_at_its_target_once_more_before_it_deletes(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, target = quick_path / "saved", quick_path / "target"
    before = take(written(quick_path / "query", 2, operators=(1,)), saved, "native")
    put_mark = LocalPlace.put

    def put_and_lose(place: LocalPlace, name: str, data: bytes) -> None:
        put_mark(place, name, data)
        if data.startswith(b"deleting"):
            shutil.rmtree(target)

    monkeypatch.setattr(LocalPlace, "put", put_and_lose)
    with pytest.raises(ConflictError, match=f"{target} is no longer the target"):
        savepoints.restore(saved, target, claim="claim")
    assert files(saved) == before


def test_a_claim_finishes_the_deletion_that_another_run_of_it_began(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, saved, target = written(quick_path / "query", 2, operators=(1,)), quick_path / "saved", quick_path / "target"
    take(query, saved, "native")
    claim = partial(savepoints.restore, saved, target, claim="claim")
    original, left = LocalPlace.delete, ["metadata"]

    def interrupted(place: LocalPlace, name: str) -> None:
        if (place.url, [name]) == (str(saved), left):
            left.clear()
            raise StorageError("made up")
        original(place, name)

    def run() -> None:
        with pytest.raises(StorageError, match="made up"):
            claim()

    monkeypatch.setattr(LocalPlace, "delete", interrupted)
    ends, waits = resolve_name(find_step("has_request")), [run]

    def wait(*args: object) -> object:
        if waits:
            waits.pop()()
        return ends(*args)

    monkeypatch.setattr(find_step("has_request"), wait)
    claim()
    assert not left
    assert files(saved) == {}
    assert stored(str(target)) == (3, 2, query.rows)


@pytest.mark.parametrize("lost", [("metadata", "state"), ("state",)])
def test_a_claim_keeps_its_savepoint_if_its_target_has_lost_state_before_it_is_repeated(
    lost: tuple[str, ...], quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, target = quick_path / "saved", quick_path / "target"
    before = take(written(quick_path / "query", 2, operators=(1,)), saved, "native")
    claim = partial(savepoints.restore, saved, target, claim="claim")
    fail(monkeypatch, find_step("delete"), claim)
    for name in lost:
        path = target / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    with pytest.raises(CkptError):
        claim()
    assert files(saved) == before
