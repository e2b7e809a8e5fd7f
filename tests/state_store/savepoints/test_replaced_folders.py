"""A call that was interrupted, or has stood still, while others replaced what it works on, harms nothing of theirs.

The folder that it names may hold another savepoint or checkpoint by then, of the same query and version.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import msgspec
import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.blobs.local.uploads import LocalUpload
from pyspark_ckpt.state_store.errors import CkptError, ConflictError, InvalidInputError, StorageError
from pyspark_ckpt.state_store.json_objects import seal
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.redistribution.jobs import RunHere
from pyspark_ckpt.state_store.savepoints.deletion import delete
from pyspark_ckpt.state_store.savepoints.restoring.target_records import read_recorded
from pyspark_ckpt.state_store.savepoints.savepoint import Kind, Savepoint
from tests.labs.saved_query import SAVEPOINT_KINDS, Query, files, find_step, stored, written

DELETION = "pyspark_ckpt.state_store.savepoints.deletion"


def branches(folder: Path, **more: Any) -> tuple[Query, Query]:  # noqa: ANN401
    """Two queries of one id at one version: before it was rolled back, and after it has run its batches again."""
    first, second = (written(folder / name, 2, batches=3, seed=seed, **more) for seed, name in enumerate("ab"))
    return first, second


def objects(folder: Path) -> dict[str, bytes]:
    """All of a folder but for the files of writes that have not ended."""
    return {name: content for name, content in files(folder).items() if not name.endswith(".tmp")}


def replace(target: Path, source: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def until_done(act: Callable[[], object]) -> None:
    """Repeat what others do while they are refused: of a call that stands still, other threads end their writes."""
    for _ in range(100):
        try:
            act()
        except CkptError:
            time.sleep(0.01)
        else:
            return


class Steps:
    """The steps of a call: an object is begun, gets its name, or is deleted. A call stands still at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count them in all local places."""
        self.done, self._number, self._is_after = 0, -1, False
        self._act: Callable[[], object] | None = None
        monkeypatch.setattr(LocalUpload, "begin", self._counted(LocalUpload.begin))
        monkeypatch.setattr(LocalUpload, "publish", self._counted(LocalUpload.publish))
        monkeypatch.setattr(LocalPlace, "delete", self._counted(LocalPlace.delete))

    def stand_still_at(self, number: int, act: Callable[[], object], *, is_after: bool) -> None:
        """Do something while the next call stands still, just before or after a step, numbered from 0."""
        self.done, self._number, self._act, self._is_after = 0, number, act, is_after

    def _counted(self, step: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **more: object) -> object:
            number, self.done = self.done, self.done + 1
            act = self._act if number == self._number else None
            if act is not None:
                self._act = None  # what others do is not counted as this call's
                if not self._is_after:
                    act()
            result = step(*args, **more)
            if act is not None and self._is_after:
                act()
            return result

        return counted


def fail(monkeypatch: pytest.MonkeyPatch, step: str, run: Callable[[], object]) -> None:
    """Run, and be interrupted at a step."""

    def failing(*_: object) -> None:
        raise StorageError("made up")

    with monkeypatch.context() as patched:
        patched.setattr(step, failing)
        with pytest.raises(StorageError, match="made up"):
            run()


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(savepoints, "LocalProcesses", RunHere)


@pytest.mark.in_turn
@pytest.mark.parametrize("step", ["copy_logs", "copy_id", "is_complete", "forget"])
@pytest.mark.parametrize("partitions", [2, 3])
@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
def test_a_restore_is_not_finished_with_another_savepoint(
    kind: Kind,
    partitions: int,
    step: str,
    quick_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = branches(quick_path, operators=(0, 2))
    saved, target = quick_path / "saved", quick_path / "target"
    savepoints.savepoint(old.location, saved, kind=kind)
    savepoints.savepoint(new.location, quick_path / "newer", kind=kind)
    restore = partial(savepoints.restore, saved, target, parallelism=partitions)
    fail(monkeypatch, find_step(step), restore)
    replace(saved, quick_path / "newer")
    before, now = files(target), files(saved)
    for claim in ("no_claim", "claim"):
        with pytest.raises(InvalidInputError, match=f"{saved} has changed since") as refused:
            restore(claim=claim)
        assert "name a new folder" in refused.value.hint
        assert (files(target), files(saved)) == (before, now)
    savepoints.restore(saved, quick_path / "other", parallelism=partitions)
    assert stored(str(quick_path / "other")) == (3, partitions, new.rows)


def test_a_rescaling_is_not_finished_with_another_checkpoint(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = branches(quick_path, checkpoint_format=1)
    source, target = quick_path / "query", quick_path / "target"
    replace(source, Path(old.location))
    rescale = partial(savepoints.restore, source, target, parallelism=3)
    fail(monkeypatch, find_step("copy_logs"), rescale)
    replace(source, Path(new.location))
    before = files(target)
    with pytest.raises(InvalidInputError, match=f"{source} has changed since"):
        rescale()
    assert files(target) == before


def test_what_an_earlier_build_has_begun_is_not_finished(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It did not record what its source held."""
    query, target = written(quick_path / "query", 2, operators=(2,)), quick_path / "target"
    rescale = partial(savepoints.restore, query.location, target, parallelism=3)
    fail(monkeypatch, find_step("copy_logs"), rescale)
    place = LocalPlace(target)
    recorded, _ = read_recorded(place)
    assert recorded is not None
    place.put("_ckpt/restore/request.json", seal(msgspec.structs.replace(recorded, source_digest="", run="")))
    with pytest.raises(InvalidInputError, match="the release that began it did not record"):
        rescale()


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


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
def test_a_deletion_that_stood_still_leaves_what_was_made_there_since(
    kind: Kind, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Native copies of one version have the same names."""
    query = written(quick_path / "query", 2, operators=(0,))
    _take(query, quick_path / "model", kind)
    steps = Steps(monkeypatch)
    delete(str(quick_path / "model"), parse({}))
    for number in range(steps.done):
        saved, now = quick_path / f"saved-{number}", dict[str, bytes]()
        _take(query, saved, kind)

        def take_another(saved: Path = saved, now: dict[str, bytes] = now) -> None:
            with suppress(InvalidInputError):  # it is deleted already
                delete(str(saved), parse({}))
            now.update(_take(query, saved, kind))

        steps.stand_still_at(number, take_another, is_after=True)
        with suppress(ConflictError):
            delete(str(saved), parse({}))
        assert now
        assert files(saved) == now, number


def _take(query: Query, saved: Path, kind: Kind) -> dict[str, bytes]:
    savepoints.savepoint(query.location, saved, kind=kind)
    return objects(saved)


def test_a_deletion_that_stood_still_before_its_mark_deletes_no_other_savepoint(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = written(quick_path / "query", 2, operators=(2,))
    saved, now = quick_path / "saved", dict[str, bytes]()
    _take(query, saved, "native")

    def take_another() -> None:
        delete(str(saved), parse({}))
        now.update(_take(query, saved, "native"))

    Steps(monkeypatch).stand_still_at(0, take_another, is_after=False)
    with pytest.raises(CkptError):
        delete(str(saved), parse({}))
    assert now
    assert files(saved) == now


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
def test_a_writer_that_stood_still_leaves_a_newer_savepoint(
    kind: Kind, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still after it has asked whether the folder is its own."""
    old, new = branches(quick_path, operators=(1,))
    steps = Steps(monkeypatch)
    _take(old, quick_path / "model", kind)
    for number in range(steps.done):
        for is_after in (False, True):
            saved, now = quick_path / f"{number}-{is_after}", dict[str, bytes]()

            def take_another(saved: Path = saved, now: dict[str, bytes] = now) -> None:
                with suppress(CkptError):  # it is deleted already
                    delete(str(saved), parse({}))
                shutil.rmtree(saved, ignore_errors=True)  # a copy that had begun has ended since
                now.update(_take(new, saved, kind))

            steps.stand_still_at(number, partial(until_done, take_another), is_after=is_after)
            with suppress(CkptError):
                savepoints.savepoint(old.location, saved, kind=kind)
            left = objects(saved)
            assert now
            assert {name: left.get(name) for name in now} == now, (number, is_after)
            assert not Savepoint(str(saved), parse({})).verify_files()


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("there", "partitions", "checkpoint_format"),
    [
        ("the same restore", 3, 2),
        ("another restore", 2, 1),
        *(
            pytest.param(*each, marks=pytest.mark.matrix)
            for each in product(["the same restore", "another restore"], [2, 3], [1, 2])
        ),
    ],
)
def test_a_restore_that_stood_still_leaves_the_checkpoint_that_was_made_there_since(
    there: str, partitions: int, checkpoint_format: int, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still after any of its writes, or between its last look at the folder and a write."""
    old, new = branches(quick_path, operators=(1,), checkpoint_format=checkpoint_format)
    saved, newer = quick_path / "saved", quick_path / "newer"
    savepoints.savepoint(old.location, saved)
    savepoints.savepoint(new.location, newer)
    source, rows = (saved, old.rows) if there == "the same restore" else (newer, new.rows)
    steps = Steps(monkeypatch)
    savepoints.restore(saved, quick_path / "model", parallelism=partitions)
    for number in range(steps.done):
        for is_after in (False, True):
            target, now = quick_path / f"{number}-{is_after}", dict[str, bytes]()

            def make_another(target: Path = target, now: dict[str, bytes] = now) -> None:
                shutil.rmtree(target, ignore_errors=True)
                savepoints.restore(source, target, parallelism=partitions)
                now.update(objects(target))

            steps.stand_still_at(number, partial(until_done, make_another), is_after=is_after)
            with suppress(CkptError):
                savepoints.restore(saved, target, parallelism=partitions)
            left = objects(target)
            assert now
            assert {name: left.get(name) for name in now} == now, (number, is_after)
            assert stored(str(target)) == (3, partitions, rows), (number, is_after)


def test_a_claim_keeps_its_savepoint_if_only_its_result_reaches_another_checkpoint(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restore stands still between its last look at the target and the result."""
    old, new = branches(quick_path, operators=(1,))
    saved, target, now = quick_path / "saved", quick_path / "target", dict[str, bytes]()
    before = _take(old, saved, "native")
    _take(new, quick_path / "newer", "native")
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
    before = _take(written(quick_path / "query", 2, operators=(1,)), saved, "native")
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
    _take(query, saved, "native")
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


def test_a_rescaling_is_finished_although_a_start_of_the_query_has_changed_its_files(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a schema that has evolved, in a run that failed before it committed anything."""
    query, target = written(quick_path / "query", 2, operators=(0,)), quick_path / "target"
    rescale = partial(savepoints.restore, query.location, target, parallelism=3)
    fail(monkeypatch, find_step("FinishedRequest"), rescale)
    name = "state/0/0/left/_metadata/schema"
    (Path(query.location) / name).write_bytes(b"\0\2v4")
    rescale()
    assert stored(str(target)) == (3, 3, query.rows)
    assert (target / name).read_bytes() == b"\0\2v4"


def test_a_restore_that_another_run_of_it_has_overtaken_does_not_say_that_it_is_unfinished(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, target = quick_path / "saved", quick_path / "target"
    _take(written(quick_path / "query", 2, operators=(1,)), saved, "native")
    claim = partial(savepoints.restore, saved, target, claim="claim")
    copy_logs, left = resolve_name(find_step("copy_logs")), [claim]

    def overtaken(*args: object) -> object:
        if left:
            left.pop()()
        return copy_logs(*args)

    monkeypatch.setattr(find_step("copy_logs"), overtaken)
    with pytest.raises(CkptError) as failed:
        claim()
    assert "unfinished" not in failed.value.hint


@pytest.mark.parametrize("lost", [("metadata", "state"), ("state",)])
def test_a_claim_keeps_its_savepoint_if_its_target_has_lost_state_before_it_is_repeated(
    lost: tuple[str, ...], quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, target = quick_path / "saved", quick_path / "target"
    before = _take(written(quick_path / "query", 2, operators=(1,)), saved, "native")
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


def test_a_restore_that_was_cleaning_up_is_finished_although_its_savepoint_is_deleted(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, saved, target = written(quick_path / "query", 2, operators=(1,)), quick_path / "saved", quick_path / "target"
    _take(query, saved, "native")
    restore = partial(savepoints.restore, saved, target)
    fail(monkeypatch, find_step("forget"), restore)
    delete(str(saved), parse({}))
    restore()
    assert files(target / "_ckpt") == {}
    assert stored(str(target)) == (3, 2, query.rows)


def test_a_rescaling_that_was_cleaning_up_says_that_its_source_has_gone_on(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, target = written(quick_path / "query", 2, operators=(1,)), quick_path / "target"
    rescale = partial(savepoints.restore, query.location, target, parallelism=3)
    fail(monkeypatch, find_step("forget"), rescale)
    query.run()
    with pytest.raises(InvalidInputError, match=f"and {query.location} is at version 4 now") as refused:
        rescale()
    assert "that checkpoint is complete" in refused.value.hint
