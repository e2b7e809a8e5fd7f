"""A savepoint or a restore whose process is killed at any write: nothing looks complete, and a second run finishes."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.redistribution.jobs import RunHere
from pyspark_ckpt.state_store.savepoints.deletion import delete
from pyspark_ckpt.state_store.savepoints.listing import find_savepoints
from pyspark_ckpt.state_store.savepoints.savepoint import Kind, Savepoint
from tests.faults.mortal_process import Mortal, files_in, is_checkpoint, left_behind, mortal, survives
from tests.labs.saved_query import stored, written

__all__ = ["mortal"]

OPERATORS = {"remainders": (0,), "one partition": (1,), "key groups": (2,)}


@pytest.mark.parametrize("layout", OPERATORS)
def test_a_restore_is_finished_by_the_same_call_however_often_it_is_killed(
    layout: str, mortal: Mortal, quick_path: Path
) -> None:
    query = written(quick_path / "old", 2, batches=2, operators=OPERATORS[layout])
    target, draw, runs = quick_path / "new", random.Random(7), 0

    def act() -> Any:  # noqa: ANN401
        return savepoints.restore(query.location, str(target), parallelism=3)

    while not survives(mortal, target, draw.randrange(12), is_after=draw.random() < 0.5, act=act):
        runs += 1
        assert runs < 100
        if is_checkpoint(target):
            assert stored(str(target)) == (query.version, 3, query.rows), "it stands"
            if not left_behind(target):
                break
        else:
            with pytest.raises(InvalidInputError, match=r"is not empty|unfinished restore"):
                savepoints.restore(query.location, str(target), parallelism=4)
    assert runs > 2
    assert stored(str(target)) == (query.version, 3, query.rows)
    assert left_behind(target) == []


STEPS = (
    ("put_if_absent", "_ckpt/restore/request.json"),
    ("put_if_absent", "metadata"),
    ("put", "_ckpt/restore/done/clip-0-0-default-1.json"),
    ("put", "_ckpt/restore/done/clip-0-1-default-1.json"),
    ("put_if_absent", "commits/0"),
    ("put_if_absent", "state/0/_metadata/metadata"),
    ("put_if_absent", "_ckpt/restore/result.json"),
    ("put", "metadata"),
    ("delete", "_ckpt/restore/done/clip-0-1-default-1.json"),
    ("delete", "_ckpt/restore/request.json"),
    ("delete", "_ckpt/restore/result.json"),
)


@pytest.mark.parametrize("is_after", [False, True])
def test_a_restore_is_finished_by_the_same_call_when_it_is_killed_at_a_step(
    is_after: bool,  # noqa: FBT001
    mortal: Mortal,
    quick_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RunHere, "width", 2)  # a task for each partition
    query = written(quick_path / "old", 1, batches=1, operators=(2,))
    for number, step in enumerate(STEPS):
        target = quick_path / f"{number}"
        act = partial(savepoints.restore, query.location, str(target), parallelism=2)
        assert not survives(mortal, target, step, is_after=is_after, act=act), step
        stands = number > STEPS.index(("put", "metadata")) - is_after
        assert is_checkpoint(target) == stands, step
        if not stands:
            assert act().version == query.version
        elif left_behind(target):
            query_goes_on(target)
            assert act().version == query.version
            query_went_on(target)
        else:
            with pytest.raises(InvalidInputError, match="is not empty"):
                act()
        assert stored(str(target)) == (query.version, 2, query.rows), step
        assert left_behind(target) == [], step


def query_goes_on(checkpoint: Path) -> None:
    """Leave something in the checkpoint that a query has written which was started on it."""
    (checkpoint / "state" / "0" / "0" / "of-the-query").write_bytes(b"")


def query_went_on(checkpoint: Path) -> None:
    """Nothing of that was touched."""
    assert (checkpoint / "state" / "0" / "0" / "of-the-query").exists()


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_a_savepoint_that_was_killed_is_none_and_can_be_deleted(kind: Kind, mortal: Mortal, quick_path: Path) -> None:
    query = written(quick_path / "old", 1, batches=1, operators=(0, 1) if kind == "native" else (1,))
    write, ended = 0, False
    while not ended:
        target = quick_path / f"{write}"
        act = partial(savepoints.savepoint, query.location, str(target), kind=kind)
        ended = survives(mortal, target, write, is_after=bool(write % 2), act=act)
        if not (target / "savepoint.json").exists() and files_in(target):
            with pytest.raises(InvalidInputError, match="is not a savepoint"):
                savepoints.restore(str(target), str(quick_path / "never"))
            with pytest.raises(InvalidInputError, match="is not empty"):
                act()
            delete(str(target), parse({}))
            assert files_in(target) == []
            act()
        if files_in(target) and write % 2:
            restored = quick_path / f"{write}-restored"
            savepoints.restore(str(target), str(restored), parallelism=3)
            assert stored(str(restored)) == (query.version, 3, query.rows)
        write += 1 if write < 3 else 12
    assert files_in(quick_path / "never") == []


def test_a_deletion_that_was_killed_is_seen_and_finished_by_the_same_call(mortal: Mortal, quick_path: Path) -> None:
    query = written(quick_path / "old", 1, batches=1, operators=(1,))
    target, write, ended = quick_path / "taken", 0, False
    act = partial(delete, str(target), parse({}))
    while not ended:
        savepoints.savepoint(query.location, str(target))
        (target / "state" / "0" / "0" / f".half.delta.{'0' * 32}.tmp").write_bytes(b"of a writer that died")
        ended = survives(mortal, target, write // 2, is_after=bool(write % 2), act=act)
        if (target / "savepoint.json").exists():
            assert Savepoint(str(target), parse({})).verify_files() == []
        elif files_in(target):
            assert find_savepoints(LocalPlace(quick_path)) == [("taken", None)]
            with pytest.raises(InvalidInputError, match="is not a savepoint"):
                savepoints.restore(str(target), str(quick_path / "never"), claim="claim")
        if files_in(target):
            assert act() > 0
        assert files_in(target) == []
        with pytest.raises(InvalidInputError, match="is not a savepoint: nothing was deleted"):
            act()
        write += 1
    assert write > 8
    assert files_in(quick_path / "never") == []


STEPS_OF_A_CLAIM = (
    ("put", "savepoint.unfinished"),
    ("delete", "savepoint.json"),
    ("delete", "metadata"),
    ("delete", "savepoint.unfinished"),
    ("delete", "_ckpt/restore/request.json"),
)


@pytest.mark.parametrize("is_after", [False, True])
def test_a_restore_that_is_killed_while_it_deletes_its_savepoint_is_finished_by_the_same_call(
    is_after: bool,  # noqa: FBT001
    mortal: Mortal,
    quick_path: Path,
) -> None:
    query = written(quick_path / "old", 1, batches=1, operators=(1,))
    for number, step in enumerate(STEPS_OF_A_CLAIM):
        taken, target = quick_path / f"{number}-taken", quick_path / f"{number}-new"
        savepoints.savepoint(query.location, str(taken))
        act = partial(savepoints.restore, str(taken), str(target), claim="claim", query_id="new")
        folder = target if step[1].startswith("_ckpt") else taken
        assert not survives(mortal, folder, step, is_after=is_after, act=act), step
        assert is_checkpoint(target), step
        query_goes_on(target)
        left = files_in(taken)
        with pytest.raises(InvalidInputError, match=r"is not a savepoint|is another restore"):
            act(query_id="keep")
        assert files_in(taken) == left
        assert act().query_id == Checkpoint(str(target), parse({})).query_id
        query_went_on(target)
        assert files_in(taken) == left_behind(target) == [], step
        assert stored(str(target)) == (query.version, 1, query.rows), step
