"""A call that has stood still, while others replaced what it works on, harms nothing of theirs.

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

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.blobs.local.uploads import LocalUpload
from pyspark_ckpt.state_store.errors import CkptError, ConflictError, InvalidInputError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.deletion import delete
from pyspark_ckpt.state_store.savepoints.savepoint import Kind, Savepoint
from tests.labs.saved_query import SAVEPOINT_KINDS, files, stored, written
from tests.state_store.savepoints.replacements import branches, objects, take

pytestmark = pytest.mark.usefixtures("in_this_process")


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


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
def test_a_deletion_that_stood_still_leaves_what_was_made_there_since(
    kind: Kind, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Native copies of one version have the same names."""
    query = written(quick_path / "query", 2, operators=(0,))
    take(query, quick_path / "model", kind)
    steps = Steps(monkeypatch)
    delete(str(quick_path / "model"), parse({}))
    for number in range(steps.done):
        saved, now = quick_path / f"saved-{number}", dict[str, bytes]()
        take(query, saved, kind)

        def take_another(saved: Path = saved, now: dict[str, bytes] = now) -> None:
            with suppress(InvalidInputError):  # it is deleted already
                delete(str(saved), parse({}))
            now.update(take(query, saved, kind))

        steps.stand_still_at(number, take_another, is_after=True)
        with suppress(ConflictError):
            delete(str(saved), parse({}))
        assert now
        assert files(saved) == now, number


def test_a_deletion_that_stood_still_before_its_mark_deletes_no_other_savepoint(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = written(quick_path / "query", 2, operators=(2,))
    saved, now = quick_path / "saved", dict[str, bytes]()
    take(query, saved, "native")

    def take_another() -> None:
        delete(str(saved), parse({}))
        now.update(take(query, saved, "native"))

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
    take(old, quick_path / "model", kind)
    for number in range(steps.done):
        for is_after in (False, True):
            saved, now = quick_path / f"{number}-{is_after}", dict[str, bytes]()

            def take_another(saved: Path = saved, now: dict[str, bytes] = now) -> None:
                with suppress(CkptError):  # it is deleted already
                    delete(str(saved), parse({}))
                shutil.rmtree(saved, ignore_errors=True)  # a copy that had begun has ended since
                now.update(take(new, saved, kind))

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
