"""Savepoints, restores and rescaling without Spark: rows stay what they are, wherever they go, or nothing is made."""

from __future__ import annotations

import json
import shutil
import threading
import time
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
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, LifecycleError, NotFoundError, StorageError
from pyspark_ckpt.state_store.format.names import (
    CHECKPOINT_FOLDER,
    NON_RESTORED_STATE_NAME,
    SAVEPOINT_NAME,
    UNFINISHED_NAME,
    WATERMARKS_FOLDER,
)
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.redistribution.copy_task import CopyTask
from pyspark_ckpt.state_store.retention.pins import FOLDER as PINS_FOLDER
from pyspark_ckpt.state_store.retention.pins import Pin, Pins
from pyspark_ckpt.state_store.savepoints import creation as savepoint_creation
from pyspark_ckpt.state_store.savepoints.savepoint import Kind
from tests.labs.lab import QUERY
from tests.labs.saved_query import MAX_PARALLELISM, SAVEPOINT_KINDS, UID, Logical, Query, files, stored, written

ALLOWED = f"{CHECKPOINT_FOLDER}/{NON_RESTORED_STATE_NAME}"


@pytest.mark.in_turn
@pytest.mark.parametrize(("partitions", "kind"), [(2, "native"), (3, "native"), (3, "canonical")])
def test_a_savepoint_is_all_that_is_left_of_a_query(partitions: int, kind: Kind, quick_path: Path) -> None:
    query = written(quick_path / "query", 2)
    savepoints.savepoint(query.location, str(quick_path / "taken"), kind=kind)
    shutil.rmtree(query.location)
    (quick_path / "taken").rename(quick_path / "moved")
    before = files(quick_path / "moved")
    savepoints.restore(str(quick_path / "moved"), str(quick_path / "restored"), parallelism=partitions)
    assert files(quick_path / "moved") == before, "nothing is ever added to a savepoint"
    shutil.rmtree(quick_path / "moved")
    assert stored(str(quick_path / "restored")) == (query.version, partitions, query.rows)


def test_paths_that_are_not_absolute_are_of_the_present_folder(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    query = written(quick_path / "query", 2)
    monkeypatch.chdir(quick_path)
    savepoints.savepoint("query", "saved/taken")
    taken = files(quick_path / "saved")
    savepoints.restore("saved/taken", "./restored", parallelism=3)
    assert stored(str(quick_path / "restored")) == (query.version, 3, query.rows)
    assert main(["checkpoint", "verify", "restored"]) == 0
    assert main(["savepoint", "list", "saved"]) == 0
    assert "taken" in capsys.readouterr().out
    capsys.readouterr()
    assert main(["savepoint", "delete", "saved/taken", "--json"]) == 0
    place = str(quick_path / "saved" / "taken")
    assert json.loads(capsys.readouterr().out) == {"savepoint": "saved/taken", "place": place, "deleted": len(taken)}
    assert not files(quick_path / "saved")
    assert main(["checkpoint", "rescale", "query", "rescaled", "-n", "1"]) == 0
    assert stored(str(quick_path / "rescaled")) == (query.version, 1, query.rows)


def test_no_clean_up_touches_a_savepoint(quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(0,))
    target = quick_path / "taken"
    savepoints.savepoint(query.location, str(target))
    before, version, rows = files(target), query.version, dict(query.rows)
    query.run(2, snapshots=True)
    savepoints.restore(str(target), str(quick_path / "restored"))
    for location in (query.location, str(quick_path / "restored")):
        assert main(["checkpoint", "gc", location, "--keep", "1", "-o", "retentionGracePeriod=0"]) == 0
    assert files(target) == before
    assert stored(str(target)) == stored(str(quick_path / "restored")) == (version, 2, rows)
    assert main(["savepoint", "verify", str(target)]) == 0


def test_a_batch_that_was_planned_runs_again_with_its_offsets(quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(0,))
    batch = query.plan()
    savepoints.savepoint(query.location, str(quick_path / "taken"))
    done = savepoints.restore(str(quick_path / "taken"), str(quick_path / "restored"), parallelism=3, query_id="new")
    assert done.query_id != QUERY
    for each in range(batch - 2, batch + 1):
        old, new = ((quick_path / where / "offsets" / f"{each}").read_text() for where in ("query", "restored"))
        assert new.splitlines()[2] == old.splitlines()[2]
        conf = {"spark.sql.shuffle.partitions": "3", "spark.sql.session.timeZone": "UTC"}
        assert json.loads(new.splitlines()[1]) == {**json.loads(old.splitlines()[1]), "conf": conf}
    sources = [files(quick_path / where / "sources") for where in ("query", "restored")]
    assert sources[0] == sources[1]
    assert sorted(path.name for path in (quick_path / "restored" / "commits").iterdir()) == [
        f"{batch - 2}",
        f"{batch - 1}",
    ]


def test_a_savepoint_has_its_logs_when_the_query_has_deleted_them_meanwhile(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = written(quick_path / "query", 2, operators=(0,))
    taken: dict[str, Any] = {"version": query.version, "rows": dict(query.rows)}

    def slow(checkpoint: Checkpoint, version: int, *more: Any) -> Any:  # noqa: ANN401
        query.run(3)
        query.purge(2)
        return list_operators(checkpoint, version, *more)

    monkeypatch.setattr(savepoint_creation, "list_operators", slow)
    info = savepoints.savepoint(query.location, str(quick_path / "taken"))
    assert info.version == taken["version"] < query.version
    savepoints.restore(str(quick_path / "taken"), str(quick_path / "restored"), parallelism=3)
    assert stored(str(quick_path / "restored")) == (info.version, 3, taken["rows"])


def test_a_savepoint_is_of_a_newer_batch_when_the_logs_of_the_first_are_gone(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, add = written(quick_path / "query", 1, operators=(0,)), Pins.add

    def late(pins: Pins, version: int, for_s: float) -> Any:  # noqa: ANN401
        if query.version == version == 3:
            query.run(3)
            query.purge(2)
        return add(pins, version, for_s)

    monkeypatch.setattr(Pins, "add", late)
    info = savepoints.savepoint(query.location, str(quick_path / "taken"))
    assert info.version == query.version == 6
    assert sorted(path.name for path in (quick_path / "taken" / "offsets").iterdir()) == ["4", "5"]
    savepoints.restore(str(quick_path / "taken"), str(quick_path / "restored"))
    assert stored(str(quick_path / "restored")) == (6, 1, query.rows)


def test_a_pin_that_stays_fails_nothing_that_was_done_while_it_was_held(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    query, delete = written(quick_path / "query", 1, operators=(1,), batches=1), LocalPlace.delete

    def refused(place: LocalPlace, name: str) -> None:
        if name.startswith(PINS_FOLDER):
            raise StorageError(f"Could not delete {name}: made up.")
        delete(place, name)

    monkeypatch.setattr(LocalPlace, "delete", refused)
    savepoints.savepoint(query.location, str(quick_path / "taken"))
    savepoints.restore(query.location, str(quick_path / "rescaled"), parallelism=2)
    assert stored(str(quick_path / "taken")) == (query.version, 1, query.rows)
    assert stored(str(quick_path / "rescaled")) == (query.version, 2, query.rows)
    assert [each.levelname for each in caplog.records if "ends by itself" in each.getMessage()] == ["WARNING"] * 2


def test_a_savepoint_says_that_its_process_stood_still_when_its_version_is_gone(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = written(quick_path / "query", 1, operators=(1,), batches=2)
    monkeypatch.setattr(savepoint_creation, "PIN_S", 0.2)
    monkeypatch.setattr(Pins, "renew", lambda *_: (_ for _ in ()).throw(StorageError("suspended")))

    def take() -> None:
        with savepoint_creation.pin(Checkpoint(query.location, parse({}))):
            query.run(3, snapshots=True)
            time.sleep(0.5)
            gc = ["checkpoint", "gc", query.location, "--keep", "1", "-o", "retentionGracePeriod=0"]
            assert main(gc) == 0
            raise NotFoundError("A delta is missing.")

    with pytest.raises(NotFoundError, match="This process stalled for longer") as failed:
        take()
    assert failed.value.message.startswith("A delta is missing. Version 2 was pinned")


def test_a_pin_is_renewed_again_when_that_has_failed(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query, renew = written(quick_path / "query", 1, operators=(1,), batches=1), Pins.renew
    problems, renewed = iter([NotFoundError("made up")]), threading.Event()

    def renewing(pins: Pins, pin: Pin, for_s: float) -> Pin:
        for each in problems:
            raise each
        new = renew(pins, pin, for_s)
        renewed.set()
        return new

    monkeypatch.setattr(Pins, "renew", renewing)
    monkeypatch.setattr(savepoint_creation, "PIN_S", 0.4)
    with savepoint_creation.pin(Checkpoint(query.location, parse({}))):
        assert renewed.wait(20)
    assert Pins(LocalPlace(Path(query.location))).list_held() == []


def test_sources_know_every_batch_whose_offsets_a_savepoint_has(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, walk = written(quick_path / "query", 1, operators=(1,)), LocalPlace.walk
    planned = iter([1])

    def plan(place: LocalPlace) -> None:
        if place.url == query.location and next(planned, None):
            query.plan()

    def walked(place: LocalPlace, folder: str = "") -> Any:  # noqa: ANN401
        found = walk(place, folder)
        if folder in ("", "sources"):
            plan(place)
        return found

    monkeypatch.setattr(LocalPlace, "walk", walked)
    savepoints.savepoint(query.location, str(quick_path / "taken"))
    assert LocalPlace(Path(query.location)).list("offsets")[-1].name == "offsets/3"
    offsets, known = (
        {path.name for path in (quick_path / "taken" / each).rglob("*")} for each in ("offsets", "sources")
    )
    assert offsets <= known


def test_a_savepoint_has_nothing_that_a_source_dropped_while_it_was_copied(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, get = written(quick_path / "query", 1, operators=(1,)), LocalPlace.get
    compacted = LocalPlace(Path(query.location))
    begun = iter([1])

    def compacting(place: LocalPlace, name: str, *more: Any) -> bytes:  # noqa: ANN401
        if (place.url, name) == (query.location, "sources/0/1") and next(begun, None):
            compacted.put("sources/0/2.compact", b"v1\n")
            for each in ("sources/0/0", "sources/0/1"):
                compacted.delete(each)
        return get(place, name, *more)

    monkeypatch.setattr(LocalPlace, "get", compacting)
    info = savepoints.savepoint(query.location, str(quick_path / "taken"))
    assert next(begun, None) is None, "the source has compacted"
    sources = [f"sources/{name}" for name in sorted(files(quick_path / "taken" / "sources"))]
    assert sources == [file.name for file in info.files if file.name.startswith("sources/")]
    assert main(["savepoint", "verify", str(quick_path / "taken")]) == 0
    savepoints.restore(str(quick_path / "taken"), str(quick_path / "restored"))
    assert stored(str(quick_path / "restored")) == (query.version, 1, query.rows)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("sources/0/9", b"v1\n"),
        ("sources/0/1", None),
        ("offsets/1", None),
        ("commits/2", b"v1\n{}"),
        ("state/0/_metadata/metadata", None),
    ],
)
def test_what_a_restore_refuses_is_found_when_a_savepoint_is_verified(
    name: str, content: bytes | None, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = written(quick_path / "query", 1, operators=(1,))
    savepoints.savepoint(query.location, str(quick_path / "taken"))
    path = quick_path / "taken" / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises((FormatError, NotFoundError)):
        savepoints.restore(str(quick_path / "taken"), str(quick_path / "restored"))
    capsys.readouterr()
    assert main(["savepoint", "verify", str(quick_path / "taken")]) == 1
    assert f"{path}" in capsys.readouterr().out


@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
def test_state_that_may_be_left_alone_still_may_when_its_checkpoint_is_moved(kind: Kind, quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(2,), batches=1)
    first, taken = str(quick_path / "first"), str(quick_path / "taken")
    savepoints.savepoint(query.location, first)
    assert not (quick_path / "first" / ALLOWED).exists()
    savepoints.restore(first, str(quick_path / "0"), allow_non_restored_state=True)
    savepoints.restore(str(quick_path / "0"), str(quick_path / "1"), parallelism=3)
    savepoints.savepoint(str(quick_path / "1"), taken, kind=kind)
    savepoints.restore(taken, str(quick_path / "2"))
    for each in ("0", "1", "2"):
        assert (quick_path / each / ALLOWED).is_file(), each
    (quick_path / "taken" / ALLOWED).unlink()
    with pytest.raises(NotFoundError, match="is missing: the savepoint was taken with it"):
        savepoints.restore(taken, str(quick_path / "3"))
    assert main(["savepoint", "verify", taken]) == 1


@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
def test_what_a_query_keeps_about_idle_inputs_goes_along(kind: Kind, quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(2,))
    newest = query.version - 1
    kept = {batch: b'v1\n{"inputs":[%d]}' % batch for batch in (newest - 1, newest, newest + 1)}
    for batch, content in kept.items():
        query.place.put(f"{WATERMARKS_FOLDER}/{batch}", content)
    taken = str(quick_path / "taken")
    savepoints.savepoint(query.location, taken, kind=kind)
    savepoints.restore(taken, str(quick_path / "restored"), parallelism=3)
    savepoints.restore(str(quick_path / "restored"), str(quick_path / "rescaled"), parallelism=2)
    for each in ("taken", "restored", "rescaled"):
        folder = quick_path / each / WATERMARKS_FOLDER
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {str(newest): kept[newest]}, each
    (quick_path / "taken" / WATERMARKS_FOLDER / str(newest)).write_bytes(kept[newest - 1])
    with pytest.raises(FormatError, match="it has changed since the savepoint was taken"):
        savepoints.restore(taken, str(quick_path / "another"))
    assert main(["savepoint", "delete", taken]) == 0
    assert not (quick_path / "taken").exists() or not files(quick_path / "taken")


def test_an_unfinished_savepoint_of_a_query_with_idle_inputs_is_deleted(quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(2,))
    query.place.put(f"{WATERMARKS_FOLDER}/{query.version - 1}", b'v1\n{"inputs":[]}')
    taken = quick_path / "taken"
    savepoints.savepoint(query.location, str(taken))
    (taken / SAVEPOINT_NAME).unlink()
    (taken / "metadata").unlink()
    (taken / UNFINISHED_NAME).write_bytes(b"0123 %d" % query.version)
    assert main(["savepoint", "delete", str(taken)]) == 0


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


def test_the_list_tells_what_did_not_finish(quick_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query: Query = written(quick_path / "query", 1, operators=(1,), batches=1)
    savepoints.savepoint(query.location, str(quick_path / "all" / "whole"))
    shutil.copytree(quick_path / "all" / "whole", quick_path / "all" / "nearly")
    (quick_path / "all" / "nearly" / "savepoint.unfinished").touch()
    (quick_path / "all" / "half").mkdir()
    (quick_path / "all" / "half" / "savepoint.unfinished").touch()
    assert main(["savepoint", "list", str(quick_path / "all"), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {each["savepoint"]: "version" in each for each in listed} == {"whole": True, "nearly": True, "half": False}


def test_the_list_goes_on_behind_a_damaged_savepoint(quick_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query: Query = written(quick_path / "query", 1, operators=(1,), batches=1)
    savepoints.savepoint(query.location, str(quick_path / "all" / "whole"))
    for name in ("a damaged one", "zero"):
        shutil.copytree(quick_path / "all" / "whole", quick_path / "all" / name)
    path = quick_path / "all" / "a damaged one" / "savepoint.json"
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":2', 1))
    (quick_path / "all" / "zero" / "savepoint.json").write_bytes(b"")
    assert main(["savepoint", "list", str(quick_path / "all")]) == 1
    rows = {line.partition("  ")[0].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert f"DAMAGED: {path} is damaged: its checksum is wrong" in rows["a damaged one"]
    assert "does not end with its checksum" in rows["zero"]
    assert " UTC" in rows["whole"]
    assert main(["savepoint", "list", str(quick_path / "all"), "--json"]) == 1
    listed = {each["savepoint"]: each for each in json.loads(capsys.readouterr().out)}
    assert listed["a damaged one"] == {
        "savepoint": "a damaged one",
        "place": str(quick_path / "all" / "a damaged one"),
        "damaged": f"{path} is damaged: its checksum is wrong.",
    }
    assert listed["whole"]["version"] == 1


def test_a_canonical_savepoint_is_named_when_it_is_taken_for_a_checkpoint(quick_path: Path) -> None:
    query = written(quick_path / "query", 2, operators=(0,), batches=1)
    savepoints.savepoint(query.location, str(quick_path / "taken"), kind="canonical")
    with pytest.raises(InvalidInputError, match="is a canonical savepoint"):
        Checkpoint(str(quick_path / "taken"), parse({}))


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
