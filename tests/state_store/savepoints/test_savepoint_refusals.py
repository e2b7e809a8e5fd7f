"""What makes a savepoint impossible is found before anything is written; after that, what is left is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.errors import (
    CkptError,
    FormatError,
    InvalidInputError,
    LifecycleError,
    NotFoundError,
    StorageError,
)
from pyspark_ckpt.state_store.savepoints.savepoint import Kind
from tests.labs.lab import damage
from tests.labs.saved_query import SAVEPOINT_KINDS, Query, files, written


def lose_metadata(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint / "state" / "0" / "_metadata")


def cut(name: str) -> Callable[[Path], None]:
    def act(checkpoint: Path) -> None:
        path = checkpoint / name
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])

    return act


def remove(pattern: str) -> Callable[[Path], None]:
    def act(checkpoint: Path) -> None:
        for path in checkpoint.glob(pattern):
            path.unlink()

    return act


SCHEMA = "state/0/0/_metadata/schema"


def forget_partitions(checkpoint: Path) -> None:
    path = checkpoint / "offsets" / "1"
    path.write_bytes(path.read_bytes().replace(b"spark.sql.shuffle.partitions", b"spark.sql.shuffle.partitionz"))


def link_sources(checkpoint: Path) -> None:
    shutil.move(checkpoint / "sources" / "0", checkpoint.parent / "elsewhere")
    (checkpoint / "sources" / "0").symlink_to(checkpoint.parent / "elsewhere")


HARMS: dict[str, tuple[Callable[[Path], None], type[CkptError]]] = {
    "an operator without a name": (lose_metadata, FormatError),
    "a cut commit log": (cut("commits/1"), FormatError),
    "a cut commit log of the batch before": (cut("commits/0"), FormatError),
    "a cut offset log": (cut("offsets/1"), FormatError),
    "a cut offset log of the batch before": (cut("offsets/0"), FormatError),
    "a missing offset log": (remove("offsets/0"), NotFoundError),
    "an unknown number of partitions": (forget_partitions, FormatError),
    "cut metadata of an operator": (cut("state/0/_metadata/metadata"), FormatError),
    "a cut schema": (cut(SCHEMA), FormatError),
    "a missing commit": (remove(f"state/0/0/{2:020d}-*"), NotFoundError),
    "a missing delta before": (remove(f"state/0/0/{1:020d}-*"), NotFoundError),
    "a link": (link_sources, InvalidInputError),
}


@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
@pytest.mark.parametrize("harm", HARMS)
def test_a_savepoint_that_is_refused_leaves_its_target_empty(harm: str, kind: Kind, quick_path: Path) -> None:
    query, target = Query(str(quick_path / "query"), 1, operators=(1,)), quick_path / "taken"
    query.run(2)
    act, error = HARMS[harm]
    act(Path(query.location))
    with pytest.raises(error) as refused:
        savepoints.savepoint(query.location, str(target), kind=kind)
    assert files(target) == {}
    assert "unfinished" not in refused.value.hint
    assert list((Path(query.location) / "_ckpt" / "pins").glob("*")) == []


@pytest.mark.parametrize("harmed", [SCHEMA, "commits/0", "sources/0/1"])
def test_a_restore_from_damaged_files_is_refused_before_it_writes(harmed: str, quick_path: Path) -> None:
    query, target = Query(str(quick_path / "query"), 1, operators=(1,)), quick_path / "restored"
    query.run(2)
    cut(harmed)(Path(query.location))
    with pytest.raises(FormatError, match=f"{harmed} is damaged") as refused:
        savepoints.restore(query.location, target, parallelism=2)
    assert f"`pyspark-ckpt checkpoint repair {query.location}`" in refused.value.hint
    assert files(target) == {}


def test_a_savepoint_of_a_cut_source_log_is_not_finished(quick_path: Path) -> None:
    query, target = Query(str(quick_path / "query"), 1, operators=(1,)), quick_path / "taken"
    query.run(2)
    cut("sources/0/1")(Path(query.location))
    with pytest.raises(FormatError, match="sources/0/1 is damaged"):
        savepoints.savepoint(query.location, target)
    assert not (target / "savepoint.json").exists()


def test_a_savepoint_of_a_query_without_a_batch_leaves_its_target_empty(quick_path: Path) -> None:
    query = Query(str(quick_path / "query"), 1, operators=(1,))
    with pytest.raises(LifecycleError, match="no batch of the query has been committed yet"):
        savepoints.savepoint(query.location, str(quick_path / "taken"))
    assert files(quick_path / "taken") == {}


def test_a_savepoint_that_fails_later_says_what_is_left_and_how_it_is_removed(
    quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query, target = Query(str(quick_path / "query"), 1, operators=(1,)), quick_path / "taken"
    query.run(2)
    damage(next((Path(query.location) / "state" / "0" / "0").glob(f"{1:020d}-*.delta")))
    assert main(["savepoint", "create", query.location, str(target)]) == 1
    told = capsys.readouterr().err
    remedy = f"`pyspark-ckpt savepoint delete {target}`"
    assert f"An unfinished savepoint is left. Remove it with {remedy}, then" in told
    assert main(["savepoint", "create", query.location, str(target)]) == 2
    told = capsys.readouterr().err
    assert "is not empty: it is an unfinished or half-deleted savepoint" in told
    assert remedy in told
    assert main(["savepoint", "delete", str(target)]) == 0
    assert files(target) == {}


def test_a_savepoint_that_is_interrupted_says_what_is_left(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    query, target = written(quick_path / "query", 1, operators=(1,), batches=1), quick_path / "taken"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pyspark_ckpt.state_store.savepoints.creation.copy_logs", interrupt)
    assert main(["savepoint", "create", query.location, str(target)]) == 130
    told = capsys.readouterr().err
    assert "pyspark-ckpt: interrupted\nAn unfinished savepoint is left. Remove it with" in told


def test_a_savepoint_that_fails_while_it_begins_says_what_is_left(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, target = written(quick_path / "query", 1, operators=(1,), batches=1), quick_path / "taken"
    walk = LocalPlace.walk

    def fail(place: LocalPlace, folder: str = "") -> object:
        if place.url == str(target) and (target / "savepoint.unfinished").exists():
            raise StorageError("made up")
        return walk(place, folder)

    monkeypatch.setattr(LocalPlace, "walk", fail)
    with pytest.raises(StorageError, match="made up") as failed:
        savepoints.savepoint(query.location, str(target))
    assert "An unfinished savepoint is left" in failed.value.hint
    assert "The same call may be repeated" in failed.value.hint


@pytest.mark.parametrize("operators", [(0,), (2,)])
def test_state_of_the_first_partition_alone_is_not_taken_for_all_of_it(
    operators: tuple[int, ...], quick_path: Path
) -> None:
    query, target = written(quick_path / "query", 3, operators=operators, checkpoint_format=1), quick_path / "never"
    for partition in (1, 2):
        shutil.rmtree(quick_path / "query" / "state" / "0" / str(partition))
    for act in (
        lambda: savepoints.savepoint(query.location, target),
        lambda: savepoints.restore(query.location, target, parallelism=1),
    ):
        with pytest.raises(NotFoundError, match=r"operator 0, partition [12], .* its objects are lost"):
            act()
    assert not target.exists()
    assert main(["checkpoint", "verify", query.location]) == 1
    with open_state(query.location, operator=0) as state, pytest.raises(NotFoundError, match="its objects are lost"):
        _ = state.states
