"""Savepoints and restores write and delete only in what they have just proved to be their own, and so do hints."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.errors import ConflictError, InvalidInputError, StorageError
from pyspark_ckpt.state_store.json_objects import seal
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.redistribution.canonical import ExportTask
from pyspark_ckpt.state_store.redistribution.jobs import RunHere
from pyspark_ckpt.state_store.retention.pins import Pins
from pyspark_ckpt.state_store.savepoints.deletion import delete
from pyspark_ckpt.state_store.savepoints.possession import Possession
from pyspark_ckpt.state_store.savepoints.savepoint import Kind, Savepoint
from tests.labs.saved_query import SAVEPOINT_KINDS, Query, files, find_step, stored, written

CREATION = "pyspark_ckpt.state_store.savepoints.creation"


def take(folder: Path, **more: Any) -> tuple[Query, Path]:  # noqa: ANN401
    """A query, and a savepoint of it."""
    query, saved = written(folder / "query", 2, operators=(2,), batches=3), folder / "taken"
    savepoints.savepoint(query.location, saved, **more)
    return query, saved


def first(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], object]) -> None:
    """Do something just before a step, once."""
    module, _, name = step.rpartition(".")
    original, left = __import__(module, fromlist=[name]).__dict__[name], [act]

    def stepped(*args: object, **more: object) -> object:
        while left:
            left.pop()()
        return original(*args, **more)

    monkeypatch.setattr(step, stepped)


def fail_once(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def fail() -> None:
        raise StorageError("made up")

    first(monkeypatch, step, fail)


@pytest.mark.parametrize("marked", [f"{'0' * 32} 5000", f"{'0' * 32} 3", "deleting 2", "deleting 3"])
def test_a_query_that_was_started_beside_a_mark_alone_is_kept(marked: str, quick_path: Path) -> None:
    """A call that takes or deletes a savepoint leaves nothing else if it is killed at its first or last step."""
    folder = quick_path / "live"
    LocalPlace(folder).put("savepoint.unfinished", marked.encode())
    written(folder, 2, operators=(2,), batches=3)
    before = files(folder)
    with pytest.raises(InvalidInputError, match="a query was started here") as refused:
        delete(str(folder), parse({}))
    assert "delete" not in refused.value.hint
    with pytest.raises(InvalidInputError, match="unfinished or half-deleted savepoint") as asked:
        Checkpoint(str(folder), parse({}))
    assert asked.value.hint.startswith("A query was started in this folder: keep it.")
    assert files(folder) == before


def test_a_live_checkpoint_is_kept_when_nothing_says_what_is_of_its_savepoint(quick_path: Path) -> None:
    """Its query has deleted the logs of the savepoint. A newer release may have written savepoint.json."""
    query, saved = take(quick_path)
    info = Savepoint(str(saved), parse({})).info
    query.location = str(saved)
    query.run(3)
    query.purge(2)
    for content in (b'{"format":1,', seal(msgspec.structs.replace(info, format=2))):
        (saved / "savepoint.json").write_bytes(content)
        before = files(saved)
        with pytest.raises(InvalidInputError, match="may be the checkpoint of a query") as refused:
            delete(str(saved), parse({}))
        assert "keep the folder" in refused.value.hint
        assert files(saved) == before


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
@pytest.mark.parametrize("there", ["savepoint", "checkpoint"])
@pytest.mark.parametrize("step", ["copy_logs", "copy_operators", "copy_id", "read_partitions"])
def test_a_writer_whose_savepoint_was_deleted_leaves_what_is_there_now(
    step: str,
    there: str,
    kind: Kind,
    quick_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query, other = (written(quick_path / name, 2, operators=(1,), seed=seed) for seed, name in enumerate("ab"))
    target, now = quick_path / "target", dict[str, bytes]()

    def replace() -> None:
        delete(str(target), parse({}))
        if there == "savepoint":
            savepoints.savepoint(other.location, target, kind=kind)
        else:
            shutil.copytree(other.location, target, dirs_exist_ok=True)
            LocalPlace(target).put("_ckpt/runs/0000000001.run", b"{}")
        now.update(files(target))

    first(monkeypatch, f"{CREATION}.{step}", replace)
    with pytest.raises(ConflictError, match="was deleted while it was being taken") as failed:
        savepoints.savepoint(query.location, target, kind=kind)
    assert "now belongs to another" in failed.value.hint
    assert "savepoint delete" not in failed.value.hint
    assert files(target) == now


@pytest.mark.parametrize("step", ["export", "_copy_stores"])
def test_no_state_is_written_where_another_savepoint_is_now(
    step: str, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, target = written(quick_path / "query", 2, operators=(1,)), quick_path / "target"
    first(monkeypatch, f"{CREATION}.copy_logs", lambda: LocalPlace(target).put("savepoint.unfinished", b"1 1"))
    monkeypatch.setattr(f"{CREATION}.{step}", lambda *_: pytest.fail("state was written"))
    with pytest.raises(ConflictError, match="was deleted while it was being taken"):
        savepoints.savepoint(query.location, target, kind="canonical" if step == "export" else "native")


def test_a_writer_that_has_finished_leaves_the_mark_of_another(quick_path: Path) -> None:
    place = LocalPlace(quick_path / "target")
    possession = Possession(place, LocalPlace(quick_path / "query"))
    possession.take(3)
    place.put("savepoint.unfinished", b"deleting 3")
    possession.release()
    assert place.get("savepoint.unfinished") == b"deleting 3"


def test_a_deletion_leaves_the_savepoint_that_is_taken_there_meanwhile(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, saved = take(quick_path)
    now: dict[str, bytes] = {}

    def replace() -> None:
        delete(str(saved), parse({}))
        savepoints.savepoint(query.location, saved)
        now.update(files(saved))

    remove = LocalPlace.delete

    def removed(place: LocalPlace, name: str) -> None:
        remove(place, name)
        if name == "metadata" and not now:
            replace()

    monkeypatch.setattr(LocalPlace, "delete", removed)
    with pytest.raises(ConflictError, match="another call has deleted the savepoint meanwhile"):
        delete(str(saved), parse({}))
    assert files(saved) == now


@pytest.mark.parametrize("there", ["nothing", "another query", "the same query"])
@pytest.mark.parametrize("step", ["copy_logs", "copy_operators", "copy_id", "is_complete"])
def test_a_claim_keeps_the_savepoint_if_its_target_is_not_that_of_the_restore_any_more(
    step: str, there: str, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, saved = take(quick_path)
    target, before, now = quick_path / "new", files(saved), dict[str, bytes]()
    if there != "nothing":
        written(quick_path / "other", 2, operators=(2,), batches=3, seed=1)
    if there == "another query":
        (quick_path / "other" / "metadata").write_bytes(b'{"id":"7f2c4c2e-0000-4000-8000-000000000000"}')

    def replace() -> None:
        shutil.rmtree(target)
        if there != "nothing":
            shutil.copytree(quick_path / "other", target)
        now.update(files(target))

    first(monkeypatch, find_step(step), replace)
    with pytest.raises(ConflictError, match="is no longer the target of this restore") as failed:
        savepoints.restore(saved, target, claim="claim", parallelism=3)
    assert "is left" not in failed.value.hint
    assert files(saved) == before
    assert files(target) == now


def interrupt_claim(saved: Path, target: Path, monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    """Interrupt a restore to three partitions that claims its savepoint, when it deletes the object ``last``."""
    remove = LocalPlace.delete

    def fail(place: LocalPlace, name: str) -> None:
        if (place.url, name) == (str(saved), last):
            raise StorageError("made up")
        remove(place, name)

    with monkeypatch.context() as patched:
        patched.setattr(LocalPlace, "delete", fail)
        with pytest.raises(StorageError, match="made up"):
            savepoints.restore(saved, target, parallelism=3, claim="claim")


@pytest.mark.parametrize("last", ["savepoint.json", "metadata", "sources/0/1"])
def test_nobody_is_told_to_delete_a_checkpoint_whose_claim_was_interrupted(
    last: str, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, saved = take(quick_path)
    savepoints.savepoint(query.location, quick_path / "second")
    target = quick_path / "all" / "new"
    interrupt_claim(saved, target, monkeypatch, last)
    before = files(target)
    acts: list[Callable[[], object]] = [
        lambda: savepoints.restore(saved, target, parallelism=2),
        lambda: savepoints.restore(saved, target, parallelism=2, claim="claim"),
        lambda: savepoints.restore(quick_path / "second", target),
        lambda: savepoints.restore(query.location, target, parallelism=2),
    ]
    for act in acts:
        with pytest.raises(InvalidInputError, match=r"is a complete checkpoint.* is another restore") as told:
            act()
        assert "delete the folder" not in told.value.hint
        assert "Name a new folder" in told.value.hint or "repeat that restore" in told.value.hint
    for folder in (target, target.parent):
        with pytest.raises(InvalidInputError, match=r"(is|has) the checkpoint of a query"):
            savepoints.savepoint(query.location, folder)
    assert files(target) == before
    savepoints.restore(saved, target, parallelism=3, claim="claim")
    assert files(saved) == {}


def test_a_rescaling_that_was_interrupted_names_a_new_folder_if_its_source_has_gone_on(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, target = written(quick_path / "query", 2, operators=(2,), batches=2), quick_path / "new"
    fail_once(monkeypatch, find_step("copy_logs"))
    with pytest.raises(StorageError):
        savepoints.restore(query.location, target, parallelism=3)
    query.run()
    with pytest.raises(InvalidInputError, match="another restore, of version 3") as refused:
        savepoints.restore(query.location, target, parallelism=3)
    assert refused.value.hint == f"{query.location} is at version 3 now, so name a new folder."


def test_two_runs_of_one_restore_at_the_same_time_are_one_restore(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, target = written(quick_path / "query", 2, operators=(2,), batches=2), quick_path / "new"

    def run() -> None:
        with suppress(StorageError), monkeypatch.context() as patched:
            fail_once(patched, find_step("copy_logs"))
            savepoints.restore(query.location, target, parallelism=3)

    first(monkeypatch, find_step("refuse_unless_empty"), run)
    savepoints.restore(query.location, target, parallelism=3)
    assert stored(str(target)) == (2, 3, query.rows)


def test_giving_up_a_restore_names_where_its_state_is(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query, target, remote = written(quick_path / "query", 2, operators=(2,)), quick_path / "new", quick_path / "R"
    fail_once(monkeypatch, find_step("copy_logs"))
    with pytest.raises(StorageError) as failed:
        savepoints.restore(query.location, target, parallelism=3, options={"remote": str(remote)})
    folder = remote / Checkpoint(query.location, parse({})).query_id
    assert f"For a new folder, also change the option remote: {folder} has state" in failed.value.hint
    assert "delete" not in failed.value.hint
    shutil.rmtree(target)
    with pytest.raises(InvalidInputError, match=f"{folder} .*perhaps from an earlier restore to {target}"):
        savepoints.restore(query.location, target, parallelism=3, options={"remote": str(remote)})


def test_a_savepoint_in_which_a_query_was_started_is_not_called_damaged(
    quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query, saved = take(quick_path)
    query.location = str(saved)
    query.run()
    for keep in (4, 1):  # the query deletes old logs later
        query.purge(keep)
        with pytest.raises(InvalidInputError, match="a query was started here") as refused:
            savepoints.restore(saved, quick_path / "new")
        assert refused.value.hint.startswith("Keep it as a checkpoint.")
        assert main(["savepoint", "verify", str(saved)]) == 1
        told = capsys.readouterr()
        assert "a query was started here" in told.out + told.err
        assert "Copy the savepoint again" not in told.out + told.err
    assert files(quick_path / "new") == {}


def test_a_canonical_savepoint_that_failed_is_deleted_with_the_runs_that_it_left(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, saved = written(quick_path / "query", 2, operators=(0,)), quick_path / "taken"

    def fail(_task: ExportTask) -> None:
        raise StorageError("made up")

    monkeypatch.setattr(savepoints, "LocalProcesses", RunHere)
    monkeypatch.setattr(ExportTask, "__call__", fail)
    with pytest.raises(StorageError, match="made up"):
        savepoints.savepoint(query.location, saved, kind="canonical")
    assert (saved / "_ckpt" / "restore" / "runs").is_dir()
    assert delete(str(saved), parse({})) > 0
    assert files(saved) == {}


def test_a_pin_that_has_ended_is_deleted_with_its_savepoint(quick_path: Path) -> None:
    """A call that copies the savepoint leaves its pin if it is killed."""
    _, saved = take(quick_path)
    pins = Pins(LocalPlace(saved))
    pin = pins.add(3, 60)
    with pytest.raises(InvalidInputError, match=rf"is being copied \({pin.name}\)"):
        delete(str(saved), parse({}))
    pins.remove(pin)
    pins.add(3, -60)
    assert delete(str(saved), parse({})) > 0
    assert files(saved) == {}


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_savepoint_is_deleted_from_a_full_disk(
    is_finished: bool,  # noqa: FBT001
    quick_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, saved = take(quick_path)
    if not is_finished:
        (saved / "savepoint.json").rename(saved / "savepoint.unfinished")
        (saved / "savepoint.unfinished").write_bytes(b"0123456789abcdef 3")
    there, put = len(files(saved)), LocalPlace.put

    def full(place: LocalPlace, name: str, data: bytes) -> None:
        if len(files(saved)) >= there:
            raise StorageError("made up") from OSError(errno.ENOSPC, "made up")
        put(place, name, data)

    monkeypatch.setattr(LocalPlace, "put", full)
    assert delete(str(saved), parse({})) == there
    assert files(saved) == {}


def test_hidden_files_of_a_user_stay_when_a_savepoint_is_deleted(quick_path: Path) -> None:
    _, saved = take(quick_path)
    mine = {".notes.tmp": b"mine", "state/.x.tmp": b"mine"}
    for name, content in mine.items():
        (saved / name).write_bytes(content)
    assert delete(str(saved), parse({})) > 0
    assert files(saved) == mine


def test_only_a_folder_with_a_mark_is_searched_when_it_is_to_be_deleted(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalPlace, "walk", lambda *_: pytest.fail("the whole tree was read"))
    with pytest.raises(InvalidInputError, match="is not a savepoint: nothing was deleted"):
        delete(str(quick_path), parse({}))


def test_two_dots_in_a_uri_take_away_the_name_before_them(quick_path: Path) -> None:
    """As in a path, whether that is a link or not."""
    query, _ = take(quick_path / "here")
    shutil.copytree(quick_path / "here" / "taken", quick_path / "there" / "taken")
    (quick_path / "there" / "deep").mkdir()
    (quick_path / "here" / "link").symlink_to(quick_path / "there" / "deep")
    dots = f"file://{quick_path}/here/link/.."
    options = {"remote": f"{dots}/R"}
    savepoints.restore(f"{dots}/taken", quick_path / "new", parallelism=3, options=options)
    assert (quick_path / "here" / "R" / Checkpoint(query.location, parse({})).query_id).is_dir()
    assert delete(f"{dots}/taken", parse({})) > 0
    assert files(quick_path / "here" / "taken") == {}
    assert files(quick_path / "there" / "taken") != {}


def test_a_link_that_leads_nowhere_is_called_that(quick_path: Path) -> None:
    query, loop, link = written(quick_path / "query", 1, operators=(2,)), quick_path / "loop", quick_path / "link"
    loop.symlink_to(loop)
    link.symlink_to(quick_path / "nothing")
    for path in (loop, link):
        with pytest.raises(
            InvalidInputError, match=f"{path} is a link that leads nowhere: nothing was deleted"
        ) as refused:
            delete(str(path), parse({}))
        assert refused.value.hint == "Name the folder of a savepoint."
    with pytest.raises(InvalidInputError, match=f"{link} is a link that leads nowhere"):
        savepoints.savepoint(query.location, link)


def test_what_is_left_in_a_linked_target_is_deleted_by_the_name_in_the_hint(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, target, link = written(quick_path / "query", 1, operators=(2,)), quick_path / "taken", quick_path / "link"
    target.mkdir()
    link.symlink_to(target)
    fail_once(monkeypatch, f"{CREATION}.copy_operators")
    with pytest.raises(StorageError) as failed:
        savepoints.savepoint(query.location, link)
    with pytest.raises(InvalidInputError) as refused:
        savepoints.savepoint(query.location, link)
    remove = f"Remove it with `pyspark-ckpt savepoint delete {target}`, then repeat the call."
    assert failed.value.hint.endswith(remove)
    assert f"remove it: `pyspark-ckpt savepoint delete {target}`. Or name a new folder" in refused.value.hint
    assert delete(str(target), parse({})) > 0
