"""Restores and rescaling without Spark: all state arrives, under new uids and in new places, or nothing is made."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.blobs.metered import LISTS, READS, Traffic
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.inventory import OperatorVersion, list_operators
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.redistribution.copy_task import CopyTask
from tests.labs.lab import QUERY
from tests.labs.saved_query import MAX_PARALLELISM, UID, Logical, Query, files, stored, written


def renamed(rows: Logical, uid: str) -> Logical:
    return {(kind, store, state.replace(f"{UID}/", f"{uid}/")): each for (kind, store, state), each in rows.items()}


@pytest.mark.parametrize("partitions", [2, 4])
def test_a_keyed_operator_is_found_under_its_new_uid(partitions: int, quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(2,))
    savepoints.savepoint(query.location, str(quick_path / "taken"))
    savepoints.restore(
        str(quick_path / "taken"), str(quick_path / "restored"), parallelism=partitions, uid_map={UID: "guests"}
    )
    assert stored(str(quick_path / "restored")) == (query.version, partitions, renamed(query.rows, "guests"))
    checkpoint = Checkpoint(str(quick_path / "restored"), parse({}))
    assert [operator.uids for operator in list_operators(checkpoint, query.version)] == [["guests"]]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"uid_map": {"unknown": "new"}}, rf"renames \['unknown'\].*{UID}"),
        ({"parallelism": MAX_PARALLELISM + 1}, f"max_parallelism {MAX_PARALLELISM}: it cannot have"),
        ({"uid_map": {UID: "a/b"}}, rf"renames '{UID}' to 'a/b': give a uid without '/'"),
        ({"uid_map": {UID: ""}}, rf"renames '{UID}' to '': give a uid"),
        ({"uid_map": {UID: None}}, rf"renames '{UID}' to None: give a uid"),
        ({"parallelism": 0}, "`parallelism` must be at least 1, got 0"),
        ({"parallelism": -1}, "`parallelism` must be at least 1, got -1"),
        ({"parallelism": 2.5}, "`parallelism` must be a whole number, got 2.5"),
        ({"parallelism": "2"}, "`parallelism` must be a whole number, got '2'"),
        ({"parallelism": True}, "`parallelism` must be a whole number, got True"),
        ({"parallelism": 1 << 30}, "`parallelism` must be at most"),
        ({"query_id": "another"}, "`query_id` must be 'keep' or 'new', got 'another'"),
    ],
)
def test_nothing_is_written_when_a_restore_is_refused(more: dict[str, Any], words: str, quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(2,), batches=1)
    savepoints.savepoint(query.location, str(quick_path / "taken"))
    with pytest.raises(InvalidInputError, match=words):
        savepoints.restore(str(quick_path / "taken"), str(quick_path / "restored"), **more)
    assert files(quick_path / "restored") == {}


def test_states_of_two_uids_do_not_become_those_of_one(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = written(quick_path / "query", 2, operators=(2,), batches=1)
    savepoints.savepoint(query.location, str(quick_path / "taken"))
    monkeypatch.setattr(OperatorVersion, "uids", [UID, "guests"])  # of a uid that was left alone when it was changed
    with pytest.raises(InvalidInputError, match=rf"the uid 'guests' to the states of \['{UID}', 'guests'\]"):
        savepoints.restore(str(quick_path / "taken"), str(quick_path / "restored"), uid_map={UID: "guests"})
    assert files(quick_path / "restored") == {}


def test_a_restore_is_refused_when_nothing_has_been_committed_or_its_notes_are_damaged(quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(2,), batches=1)
    target = quick_path / "restored"
    LocalPlace(target).put("_ckpt/restore/request.json", b"")
    with pytest.raises(FormatError, match=r"request\.json is damaged"):
        savepoints.restore(query.location, str(target), parallelism=3)
    shutil.rmtree(target)
    Path(query.location, "commits", "0").unlink()
    with pytest.raises(LifecycleError, match="no batch of the query has been committed"):
        savepoints.restore(query.location, str(target), parallelism=3)
    assert files(target) == {}


def test_attempts_at_one_copy_leave_each_other_alone(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = written(quick_path / "query", 1, operators=(0,))
    checkpoint = Checkpoint(query.location, parse({}))
    (operator,) = list_operators(checkpoint, query.version)
    (store,) = operator.stores["left"]
    task = CopyTask(Workplace(parse({})), store, str(quick_path / "copy"))
    first, before = task(), files(quick_path / "copy")
    monkeypatch.setattr(LocalPlace, "delete", lambda _place, name: pytest.fail(f"{name} was deleted"))
    assert task() == first
    assert files(quick_path / "copy") == before


def test_state_apart_from_its_checkpoint_is_taken_and_put_apart_again(quick_path: Path) -> None:
    old, new = str(quick_path / "state-old"), str(quick_path / "state-new")
    query = written(quick_path / "query", 2, remote=old)
    before = files(Path(old))
    with pytest.raises(InvalidInputError, match=r"belongs to the checkpoint .*, whose query has the same id"):
        savepoints.restore(query.location, str(quick_path / "refused"), parallelism=3, options={"remote": old})
    assert files(quick_path / "refused") == {}
    savepoints.restore(query.location, str(quick_path / "rescaled"), parallelism=3, options={"remote": new})
    assert files(Path(old)) == before
    savepoints.savepoint(query.location, str(quick_path / "taken"), options={"remote": old})
    done = savepoints.restore(
        str(quick_path / "taken"), str(quick_path / "restored"), query_id="new", options={"remote": old}
    )
    assert {name: content for name, content in files(Path(old)).items() if done.query_id not in name} == before
    shutil.rmtree(Path(old, QUERY))
    assert stored(str(quick_path / "taken")) == (query.version, 2, query.rows), "a savepoint is whole in its folder"
    for name, partitions in (("rescaled", 3), ("restored", 2)):
        kept = files(quick_path / name)
        assert not [each for each in kept if each.endswith((".sst", ".delta", ".snapshot"))]
        assert stored(str(quick_path / name)) == (query.version, partitions, query.rows)


def test_a_restore_is_another_when_its_state_is_to_lie_elsewhere(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = written(quick_path / "query", 1, operators=(2,), batches=1)
    target, options = str(quick_path / "restored"), {"remote": str(quick_path / "apart")}
    with monkeypatch.context() as patched:
        patched.setattr("pyspark_ckpt.state_store.savepoints.restoring.query_restore.copy_logs", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            savepoints.restore(query.location, target, parallelism=2, options=options)
    with pytest.raises(InvalidInputError, match=r"unfinished restore of .*, and this is another"):
        savepoints.restore(query.location, target, parallelism=2)
    savepoints.restore(query.location, target, parallelism=2, options=options)
    assert stored(target) == (query.version, 2, query.rows)


@pytest.mark.parametrize("checkpoint_format", [1, 2])
@pytest.mark.parametrize(("deltas", "expected"), [(0, 2), (1, 3)])
def test_a_store_costs_few_requests_when_all_are_looked_at(
    deltas: int, expected: int, checkpoint_format: int, quick_path: Path, traffic: Traffic
) -> None:
    spent = []
    for partitions in (2, 5):
        query = Query(str(quick_path / str(partitions)), partitions, operators=(0,), format=checkpoint_format)
        query.run()
        for identity in query.identities():
            query.snapshot(identity)
        query.run(deltas)
        checkpoint = Checkpoint(query.location, parse({}))
        traffic.take()
        list_operators(checkpoint, query.version)
        spent.append((len(list(query.identities())), traffic.take()))
    (few, before), (many, after) = spent
    reads, lists = ((after[kind] - before[kind]) / (many - few) for kind in (READS, LISTS))
    assert lists == 1, "of the store's own folder"
    assert reads == expected, "where it is, its snapshot, and what the delta after it says"


@pytest.mark.parametrize("partitions", [None, 2, 3])
def test_a_checkpoint_is_restored_as_its_newest_batch(partitions: int | None, quick_path: Path) -> None:
    query = written(quick_path / "query", 2)
    before = files(quick_path / "query")
    savepoints.restore(query.location, str(quick_path / "restored"), parallelism=partitions)
    assert stored(str(quick_path / "restored")) == (query.version, partitions or 2, query.rows)
    assert files(quick_path / "query") == before
    query.run(1)


def test_a_restore_of_a_checkpoint_can_be_explained(quick_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query, target = written(quick_path / "query", 2), quick_path / "restored"
    assert main(["savepoint", "restore", query.location, str(target), "-n", "3", "--dry-run"]) == 0
    assert "2 to 3 partitions" in capsys.readouterr().out
    assert not target.exists()


def test_a_checkpoint_cannot_be_claimed(quick_path: Path) -> None:
    query = written(quick_path / "query", 2)
    with pytest.raises(InvalidInputError, match="is not a savepoint"):
        savepoints.restore(query.location, str(quick_path / "restored"), claim="claim")
    assert files(quick_path / "query")
    assert not (quick_path / "restored").exists()
