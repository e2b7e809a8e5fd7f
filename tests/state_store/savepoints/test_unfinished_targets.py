"""What a restore or a savepoint has left unfinished is called what it is; so is the target of a finished restore."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.errors import InvalidInputError, StorageError
from pyspark_ckpt.state_store.options import parse
from tests.labs.saved_query import Query, files, stored, written


def interrupted(query: Query, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rescaling to two partitions that has written state and not its logs."""
    with monkeypatch.context() as patched:
        patched.setattr("pyspark_ckpt.state_store.savepoints.restoring.query_restore.copy_logs", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            savepoints.restore(query.location, str(target), parallelism=2)


def commands(folder: Path) -> list[list[str]]:
    """All that a checkpoint is given to."""
    name = str(folder)
    return [
        *(["checkpoint", each, name] for each in ("list", "inspect", "verify", "gc")),
        *(["state", each, name] for each in ("read", "count")),
        ["savepoint", "create", name, f"{name}-taken"],
        ["checkpoint", "rescale", name, f"{name}-rescaled", "-n", "3"],
    ]


def test_an_unfinished_restore_is_called_that_by_all_commands(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    query, target = written(quick_path / "query", 1, operators=(2,), batches=2), quick_path / "restored"
    interrupted(query, target, monkeypatch)
    for command in commands(target):
        assert main(command) == 2, command
        told = capsys.readouterr().err
        assert f"is not a checkpoint yet: it is an unfinished restore of {query.location}, version 2, to 2" in told
        assert "If it is running, wait. Otherwise finish it: repeat the same `restore` or `rescale`" in told
        assert "delete" not in told
    assert main(["savepoint", "restore", str(target), str(quick_path / "another")]) == 2
    assert "It is the target of an unfinished restore." in capsys.readouterr().err
    savepoints.restore(query.location, str(target), parallelism=2)
    assert stored(str(target)) == (2, 2, query.rows)


def test_the_metadata_of_an_unfinished_restore_says_what_to_do_where_spark_looks_for_the_id(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark shows the value that is no text. A second run of another build has written another form before."""
    query, target = written(quick_path / "query", 1, operators=(2,), batches=1), quick_path / "restored"
    interrupted(query, target, monkeypatch)
    mark = msgspec.json.decode((target / "metadata").read_bytes())
    (told,) = mark["id"]
    assert f"{target} is an unfinished restore of {query.location}, not a checkpoint. Repeat the same restore" in told
    former = {"restore": f"of {query.location} did not finish", "request": mark["request"]}
    (target / "metadata").write_bytes(msgspec.json.encode(former))
    with pytest.raises(InvalidInputError, match="is not a checkpoint yet: it is an unfinished restore"):
        Checkpoint(str(target), parse({}))
    savepoints.restore(query.location, str(target), parallelism=2)
    assert stored(str(target)) == (1, 2, query.rows)


def test_an_unfinished_savepoint_is_called_that_by_all_commands(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that lacks nothing but savepoint.json."""
    query, target = written(quick_path / "query", 1, operators=(2,), batches=1), quick_path / "taken"
    put_if_absent = LocalPlace.put_if_absent

    def fail(place: LocalPlace, name: str, data: bytes) -> bool:
        if name == "savepoint.json":
            raise StorageError("made up")
        return put_if_absent(place, name, data)

    with monkeypatch.context() as patched:
        patched.setattr(LocalPlace, "put_if_absent", fail)
        with pytest.raises(StorageError, match="made up"):
            savepoints.savepoint(query.location, str(target))
    for has_id in (True, False):
        if not has_id:
            (target / "metadata").unlink()
        for command in commands(target):
            assert main(command) == 2, command
            told = capsys.readouterr().err
            assert "is not a checkpoint: it is an unfinished or half-deleted savepoint." in told
            assert f"`pyspark-ckpt savepoint delete {target}`" in told


def test_a_savepoint_without_its_id_is_called_a_savepoint(quick_path: Path) -> None:
    query, target = written(quick_path / "query", 1, operators=(2,), batches=1), quick_path / "taken"
    savepoints.savepoint(query.location, str(target))
    (target / "metadata").unlink()
    with pytest.raises(InvalidInputError, match="it is a savepoint, whose metadata has no query id") as refused:
        Checkpoint(str(target), parse({}))
    assert f"`pyspark-ckpt savepoint verify {target}`." in refused.value.hint


def test_a_restore_that_is_repeated_after_it_has_finished_is_told_so(
    quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = written(quick_path / "query", 1, operators=(2,), batches=2)
    saved, target = quick_path / "taken", quick_path / "restored"
    savepoints.savepoint(query.location, str(saved))
    command = ["savepoint", "restore", str(saved), str(target), "-n", "2"]
    assert main(command) == 0
    before = files(target)
    capsys.readouterr()
    assert main(command) == 2
    told = capsys.readouterr().err
    is_of = f"the checkpoint of query {Checkpoint(str(target), parse({})).query_id} at version 2, with 2 partitions."
    assert f"{target} is not empty: this restore has already finished. It is {is_of}\n" in told
    assert "spark.sql.shuffle.partitions=2" in told
    assert files(target) == before
    (target / "commits" / "2").write_bytes((target / "commits" / "1").read_bytes())
    (target / "offsets" / "2").write_bytes((target / "offsets" / "1").read_bytes())
    assert main(command) == 2
    assert "at version 3, with 2 partitions. The query has run since." in capsys.readouterr().err
    with pytest.raises(InvalidInputError, match="is not empty: it is the checkpoint of query"):
        savepoints.restore(str(saved), query.location)
    with pytest.raises(InvalidInputError, match="is not empty: it is the checkpoint of query") as another:
        savepoints.restore(str(saved), str(target), parallelism=3)
    assert another.value.hint == "Name a new folder for a checkpoint."
    with pytest.raises(InvalidInputError, match="is not empty: it is the checkpoint of query") as perhaps:
        savepoints.restore(str(saved), str(target), parallelism=2, query_id="new")
    assert perhaps.value.hint == "Name a new folder for a checkpoint.", "it has the id of the savepoint"
    copy = quick_path / "copy"
    savepoints.restore(str(saved), str(copy), parallelism=2, query_id="new")
    with pytest.raises(InvalidInputError, match="is not empty: it is the checkpoint of query") as perhaps:
        savepoints.restore(str(saved), str(copy), parallelism=2, query_id="new")
    assert perhaps.value.hint.startswith("An earlier run of this restore may have made it")


def test_a_restore_that_fails_or_is_interrupted_says_what_is_left(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    query, saved = written(quick_path / "query", 1, operators=(2,), batches=2), quick_path / "taken"
    savepoints.savepoint(query.location, str(saved))
    for failure, code in ((StorageError("made up"), 1), (KeyboardInterrupt(), 130)):
        for command in (["checkpoint", "rescale", query.location], ["savepoint", "restore", str(saved)]):
            target = quick_path / f"{command[0]}-{code}"

            def fail(*_: object, failure: BaseException = failure) -> None:
                raise failure

            with monkeypatch.context() as patched:
                patched.setattr("pyspark_ckpt.state_store.savepoints.restoring.query_restore.copy_logs", fail)
                assert main([*command, str(target), "-n", "2"]) == code
            told = capsys.readouterr().err
            assert f"An unfinished restore is left in {target}: " in told
            assert main([*command, str(target), "-n", "3"]) == 2
            assert "is left" not in capsys.readouterr().err, "that is another restore, which has left nothing"
            assert main([*command, str(target), "-n", "2"]) == 0
            capsys.readouterr()


@pytest.mark.parametrize("first", ["savepoint.json", "metadata"])
def test_a_claim_that_fails_to_delete_its_savepoint_says_that_the_checkpoint_is_complete(
    first: str, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, saved = written(quick_path / "query", 1, operators=(2,), batches=2), quick_path / "taken"
    savepoints.savepoint(query.location, str(saved))
    delete, target = LocalPlace.delete, str(quick_path / "restored")

    def fail(place: LocalPlace, name: str) -> None:
        if (place.url, name) == (str(saved), first):
            raise StorageError("made up")
        delete(place, name)

    with monkeypatch.context() as patched:
        patched.setattr(LocalPlace, "delete", fail)
        for _ in range(2):
            with pytest.raises(StorageError, match="made up") as failed:
                savepoints.restore(str(saved), target, claim="claim")
            assert f"The checkpoint {target} is complete." in failed.value.hint
    savepoints.restore(str(saved), target, claim="claim")
    assert files(saved) == {}
    assert stored(target) == (2, 1, query.rows)


def test_a_restore_with_other_arguments_is_not_told_that_it_has_finished(quick_path: Path) -> None:
    query = written(quick_path / "query", 1, operators=(0, 2), batches=2)
    saved, target = str(quick_path / "taken"), str(quick_path / "restored")
    savepoints.savepoint(query.location, saved)
    savepoints.restore(saved, target, parallelism=2)
    before = files(quick_path)
    others: list[dict[str, Any]] = [
        {"uid_map": {"visits": "calls"}},
        {"allow_non_restored_state": True},
        {"options": {"remote": str(quick_path / "apart")}},
    ]
    for other in others:
        with pytest.raises(InvalidInputError, match="is not empty: it is the checkpoint of query") as refused:
            savepoints.restore(saved, target, parallelism=2, **other)
        assert refused.value.hint == "Name a new folder for a checkpoint."
    with pytest.raises(InvalidInputError, match="this restore has already finished"):
        savepoints.restore(saved, target, parallelism=2)
    assert files(quick_path) == before


def test_a_checkpoint_is_not_taken_for_the_outcome_of_a_restore_of_its_copy(quick_path: Path) -> None:
    """Nothing tells an earlier run of that from the original, if all stores are copied."""
    query, copy = written(quick_path / "query", 2, operators=(0, 2), batches=2), quick_path / "copy"
    shutil.copytree(query.location, copy)
    before = files(quick_path)
    with pytest.raises(InvalidInputError, match="is not empty: it is the checkpoint of query") as refused:
        savepoints.restore(str(copy), query.location, parallelism=2)
    assert refused.value.hint == "An earlier run of this restore may have made it. Name a new folder for a checkpoint."
    assert files(quick_path) == before
    savepoints.restore(query.location, str(quick_path / "rescaled"), parallelism=3)
    with pytest.raises(InvalidInputError, match="is not empty: it is the checkpoint of query") as refused:
        savepoints.restore(str(copy), str(quick_path / "rescaled"), parallelism=3)
    assert refused.value.hint == "Name a new folder for a checkpoint."


def test_a_claim_that_is_repeated_after_it_has_finished_is_told_so(quick_path: Path) -> None:
    query = written(quick_path / "query", 1, operators=(2,), batches=2)
    saved, target = quick_path / "taken", quick_path / "restored"
    savepoints.savepoint(query.location, str(saved))
    savepoints.restore(str(saved), str(target), claim="claim")
    with pytest.raises(InvalidInputError, match=r"nothing is there\. .* at version 2, with 1 partitions") as refused:
        savepoints.restore(str(saved), str(target), claim="claim")
    assert "it has deleted the savepoint that it claimed" in refused.value.hint
