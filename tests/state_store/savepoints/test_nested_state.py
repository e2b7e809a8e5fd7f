"""State apart from its checkpoint lies in no checkpoint and no savepoint, and nothing is made inside of it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.ownership import claim
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.nesting import refuse_inside_another
from pyspark_ckpt.state_store.savepoints.restoring.request import QueryId
from pyspark_ckpt.state_store.savepoints.savepoint import refuse_unless_empty
from tests.labs.lab import QUERY
from tests.labs.saved_query import Query, files, written


@pytest.mark.parametrize("query_id", ["keep", "new"])
@pytest.mark.parametrize("remote", ["query", "query/state", "saved", "saved/deep/er", "other", "other/x", "target"])
def test_no_state_is_put_inside_of_a_checkpoint_or_a_savepoint(
    remote: str, query_id: QueryId, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query, saved, target = written(quick_path / "query", 1, batches=1), quick_path / "saved", quick_path / "target"
    written(quick_path / "other", 1, operators=(1,), batches=1, seed=1)
    savepoints.savepoint(query.location, str(saved))
    options, before = {"remote": str(quick_path / remote)}, files(quick_path)
    outer = quick_path / remote.partition("/")[0]
    acts: list[Callable[[], object]] = [
        lambda: savepoints.restore(query.location, str(target), parallelism=2, query_id=query_id, options=options),
        lambda: savepoints.restore(str(saved), str(target), query_id=query_id, options=options),
    ]
    for act in acts:
        with pytest.raises(InvalidInputError, match=rf"{quick_path / remote}/[-0-9a-f]*.* is inside {outer}"):
            act()
    command = [
        "checkpoint",
        "rescale",
        query.location,
        str(target),
        "-n",
        "2",
        "--query-id",
        query_id,
        "--dry-run",
        "--quick",
    ]
    assert main([*command, "-o", f"remote={quick_path / remote}"]) == 2
    assert f"is inside {outer}" in capsys.readouterr().err
    assert files(quick_path) == before


def test_no_state_is_put_around_the_checkpoint_that_it_is_made_from(quick_path: Path) -> None:
    remote = quick_path / "apart"
    query = written(remote / QUERY / "query", 1, operators=(1,), batches=1)
    before = files(quick_path)
    with pytest.raises(InvalidInputError, match=f"The state would be in {remote / QUERY}, and {query.location} is in"):
        savepoints.restore(query.location, str(quick_path / "target"), parallelism=2, options={"remote": str(remote)})
    assert files(quick_path) == before


@pytest.mark.parametrize("spelled", ["remote", "link"])
def test_no_checkpoint_is_the_folder_of_its_own_state(spelled: str, quick_path: Path) -> None:
    query, remote = written(quick_path / "query", 1, operators=(1,), batches=1), quick_path / "remote"
    (quick_path / "link").symlink_to(remote)
    remote.mkdir()
    before = files(quick_path)
    for target in (remote / QUERY, quick_path / spelled / QUERY):
        with pytest.raises(InvalidInputError, match="which is the new checkpoint itself"):
            savepoints.restore(
                query.location, str(target), parallelism=2, options={"remote": str(quick_path / spelled)}
            )
    assert files(quick_path) == before


def apart(folder: Path, remote: Path, seed: int = 0) -> Query:
    """A query whose state is below ``remote`` and has an owner."""
    query = written(folder, 1, operators=(1,), batches=1, seed=seed, remote=str(remote))
    claim(LocalPlace(remote / QUERY), LocalPlace(folder), str(remote))
    return query


def makers(query: Query, saved: Path, target: Path) -> list[Callable[[], object]]:
    return [
        lambda: savepoints.savepoint(query.location, str(target)),
        lambda: savepoints.restore(str(saved), str(target)),
        lambda: savepoints.restore(query.location, str(target), parallelism=2),
    ]


def test_nothing_is_made_inside_of_the_state_of_a_query(quick_path: Path) -> None:
    """Of the query itself, and of another one; a copy of a checkpoint has no owner of its own."""
    query, other, saved = apart(quick_path / "query", quick_path / "R"), quick_path / "other", quick_path / "saved"
    written(other, 1, operators=(2,), batches=1)
    savepoints.savepoint(query.location, str(saved))
    owner = quick_path / "R" / QUERY
    for source in (query, Query(str(other), 1, operators=(2,))):
        for act in makers(source, saved, owner / "inside" / "deep"):
            with pytest.raises(InvalidInputError, match=f"is inside {owner}") as refused:
                act()
            if source is not query:
                assert f"which is the state of the checkpoint {query.location}: " in refused.value.message
    (owner / "owner.json").unlink()
    for act in (makers(query, saved, owner / "inside")[i] for i in (0, 2)):
        with pytest.raises(InvalidInputError, match=f"is inside {owner}, which must not change"):
            act()


def test_state_is_called_state_and_nobody_is_told_to_delete_what_is_in_it(quick_path: Path) -> None:
    query, remote = apart(quick_path / "query", quick_path / "R"), quick_path / "R"
    with pytest.raises(InvalidInputError, match=f"it is the state of the checkpoint {query.location}"):
        Checkpoint(str(remote / QUERY), parse({}))
    with pytest.raises(InvalidInputError, match="is not empty: it has the state of a query") as there:
        refuse_unless_empty(LocalPlace(remote), "a savepoint")
    assert "delete" not in there.value.hint
    shutil.copytree(query.location, quick_path / "copy")

    def act() -> object:
        options = {"remote": str(remote)}
        return savepoints.restore(str(quick_path / "copy"), str(quick_path / "target"), parallelism=2, options=options)

    with pytest.raises(InvalidInputError, match="belongs to the checkpoint") as empty:
        act()
    assert f"delete {remote / QUERY}." in empty.value.hint
    written(remote / QUERY / "nested", 1, operators=(1,), batches=1)
    with pytest.raises(InvalidInputError, match="belongs to the checkpoint") as full:
        act()
    assert f"Do not delete {remote / QUERY}: it has the checkpoint of a query in {remote / QUERY}/nested." in (
        full.value.hint
    )


@pytest.mark.parametrize("lost", [("metadata",), ("offsets", "commits"), ("metadata", "commits"), ("state",)])
def test_what_is_left_of_a_checkpoint_is_named_and_nobody_is_told_to_delete_it(
    lost: tuple[str, ...], quick_path: Path
) -> None:
    query, target = written(quick_path / "query", 1, operators=(1,), batches=1), quick_path / "target"
    written(target / "below", 1, operators=(1,), batches=1)
    for name in lost:
        path = target / "below" / name
        path.unlink() if path.is_file() else shutil.rmtree(path)
    for folder, told in ((target, f"it has the checkpoint of a query in {target}/below"), (target / "below", "it is")):
        with pytest.raises(InvalidInputError, match=f"is not empty: {told}") as refused:
            savepoints.savepoint(query.location, str(folder))
        assert refused.value.hint == "Name a new folder for a savepoint."


@pytest.mark.parametrize("there", ["notes.txt", "_delta_log/0.json", "state/0/0/x.delta", "a/metadata", "_ckpt/x"])
def test_nobody_is_told_to_delete_what_is_in_a_target(there: str, quick_path: Path) -> None:
    query, target = written(quick_path / "query", 1, operators=(1,), batches=1), LocalPlace(quick_path / "target")
    target.put(there, b"")
    for act in (savepoints.savepoint, partial(savepoints.restore, parallelism=2)):
        with pytest.raises(InvalidInputError, match="is not empty: it has") as refused:
            act(query.location, target.url)
        assert re.fullmatch("Name a new folder for a (savepoint|checkpoint).", refused.value.hint)


def test_a_file_of_another_program_above_is_no_checkpoint(quick_path: Path) -> None:
    """The id of a query is a UUID; in a checkpoint whose id is another text, there are logs."""
    query, data = written(quick_path / "query", 1, operators=(1,), batches=1), LocalPlace(quick_path / "data")
    data.put("metadata", b'{"id": "x", "name": "dataset"}')
    savepoints.savepoint(query.location, f"{data.url}/taken")
    data.put("offsets/0", b"")
    with pytest.raises(InvalidInputError, match=f"is inside {data.url}, which is the checkpoint of a query"):
        refuse_inside_another(
            LocalPlace(quick_path / "data" / "x"), Checkpoint(query.location, parse({})).workplace, ""
        )
