"""Where savepoints and restores write: folders that are in use, or not empty, stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.offline.reading import open_state
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.errors import ConflictError, InvalidInputError
from tests.labs.saved_query import files, find_step, stored, written


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
            r"uid_map must be a mapping with text as keys, got \['a'\] of type list",
        ),
        (lambda: UNTYPED.restore("/from", "/to", uid_map={5: "a"}), r"uid_map must be .*, got \{5: 'a'\} of type dict"),
        (lambda: UNTYPED.restore("/from", "/to", options={5: "a"}), r"options must be a mapping with text as keys"),
        (
            lambda: UNTYPED.restore("/from", "/to", allow_non_restored_state="false"),
            "allow_non_restored_state must be True or False, got 'false' of type str",
        ),
        (lambda: UNTYPED.savepoint("/from", "/to", digests="no"), "digests must be True or False, got 'no'"),
        (lambda: UNTYPED_READER("/from", include_expired=None), "include_expired must be True or False, got None"),
        (lambda: UNTYPED_READER("/from", version="3"), "version must be an integer, got '3' of type str"),
        (
            lambda: UNTYPED_READER("/from", options=["x"]),
            r"options must be a mapping with text as keys, got \['x'\] of type list",
        ),
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
