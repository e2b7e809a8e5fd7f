"""A branch has the state of a retained batch, and shares files that either checkpoint may delete."""

from __future__ import annotations

import re
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.cli.main import main
from pyspark_ckpt.moving import branch
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, LifecycleError, NotFoundError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints import creation
from pyspark_ckpt.state_store.savepoints.restoring import source
from pyspark_ckpt.state_store.savepoints.restoring.plan import RestorePlan
from pyspark_ckpt.state_store.savepoints.restoring.query_restore import QueryRestore
from tests.labs.saved_query import Query, files, stored, written
from tests.services.s3_server import S3Service


def _tables(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.sst"))


def test_a_branch_of_each_retained_batch_has_its_state(quick_path: Path) -> None:
    query = Query(str(quick_path / "query"), 2)
    known = []
    for _ in range(5):
        query.run(snapshots=True)
        known.append(deepcopy(query.rows))
    before = files(quick_path / "query")
    for batch, rows in enumerate(known):
        target = quick_path / f"branch-{batch}"
        done = branch(query.location, target, batch=batch)
        assert (done.version, done.partitions, stored(str(target))) == (batch + 1, 2, (batch + 1, 2, rows))
        assert done.query_id != Checkpoint(query.location, parse({})).query_id
        assert (target / "commits" / str(batch)).exists()
        assert not (target / "commits" / str(batch + 1)).exists()
    assert branch(query.location, quick_path / "newest").version == query.version
    assert stored(str(quick_path / "newest")) == (query.version, 2, query.rows)
    assert files(quick_path / "query") == before


def _add_rivals(query: Query) -> None:
    """Let each store have another commit of the newest version, of an attempt that lost."""
    for delta in Path(query.location).rglob(f"{query.version:020d}-*.delta"):
        shutil.copy(delta, delta.with_name(re.sub(r"-[0-9a-f]{32}-", f"-{0:032x}-", delta.name)))


@pytest.mark.parametrize("step", ["list_operators", "RestorePlan.of", "QueryRestore.run", "read_logs"])
@pytest.mark.parametrize("has_rivals", [False, True])
def test_a_branch_outlives_the_logs_of_its_batch(
    step: str, quick_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_rivals: bool
) -> None:
    """Whatever the branch does next, the running query has just deleted the logs of its batch."""
    query = written(quick_path / "query", 2)
    if has_rivals:
        _add_rivals(query)
    version, rows = query.version, deepcopy(query.rows)
    owner: Any = {"list_operators": source, "RestorePlan.of": RestorePlan, "QueryRestore.run": QueryRestore}.get(
        step, creation
    )
    name = step.rpartition(".")[2]
    act = getattr(owner, name)
    is_first = iter([True])

    def run_on(*given: Any, **named: Any) -> Any:  # noqa: ANN401
        if next(is_first, False):
            query.run(3)
            query.purge(2)
        return act(*given, **named)

    monkeypatch.setattr(owner, name, run_on)
    done = branch(query.location, quick_path / "branch")
    if step == "read_logs":  # it begins again
        version, rows = query.version, query.rows
    assert done.version == version
    assert stored(str(quick_path / "branch")) == (version, 2, rows)


def test_table_files_are_shared_and_belong_to_each_checkpoint(quick_path: Path) -> None:
    query = written(quick_path / "query", 2)
    done = branch(query.location, quick_path / "branch")
    tables = _tables(quick_path / "branch")
    assert tables
    assert all(table.stat().st_nlink == 2 for table in tables)
    assert all(each.digest.sum is None for each in done.states)
    rows = deepcopy(query.rows)
    query.run(3, snapshots=True)
    assert main(["checkpoint", "gc", query.location, "--keep", "1", "-o", "retentionGracePeriod=0"]) == 0
    assert stored(str(quick_path / "branch")) == (done.version, 2, rows)
    assert main(["checkpoint", "gc", str(quick_path / "branch"), "--keep", "1", "-o", "retentionGracePeriod=0"]) == 0
    assert stored(query.location) == (query.version, 2, query.rows)
    shutil.rmtree(quick_path / "query")
    assert main(["checkpoint", "verify", str(quick_path / "branch")]) == 0
    assert all(table.stat().st_nlink == 1 for table in _tables(quick_path / "branch"))


def test_a_damaged_table_file_is_not_shared(quick_path: Path) -> None:
    query = Query(str(quick_path / "query"), 1)
    query.run(3)
    for identity in query.identities():
        query.snapshot(identity)
    query.run(1)
    for table in _tables(quick_path / "query"):
        table.write_bytes(table.read_bytes()[:-1] + b"x")
    branch(query.location, quick_path / "branch")
    assert stored(query.location) == stored(str(quick_path / "branch")) == (query.version, 1, query.rows)
    assert not _tables(quick_path / "branch")
    for identity in query.identities():
        query.snapshot(identity)
    for delta in (quick_path / "query").rglob("*.delta"):
        delta.unlink()
    for table in _tables(quick_path / "query"):
        table.write_bytes(table.read_bytes()[:-1] + b"x")
    with pytest.raises(FormatError, match="its checksum is wrong"):
        branch(query.location, quick_path / "never")


def test_another_batch_into_an_unfinished_branch_is_told_to_repeat_the_first_call(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, target = written(quick_path / "query", 2, batches=4), quick_path / "branch"
    with monkeypatch.context() as patched:
        patched.setattr("pyspark_ckpt.state_store.savepoints.restoring.query_restore.copy_operators", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            branch(query.location, target)
    with pytest.raises(InvalidInputError, match="Repeat that restore with the same arguments"):
        branch(query.location, target, batch=query.version - 2)


def test_objects_are_copied_and_verified_where_they_cannot_be_shared(quick_path: Path, s3: S3Service) -> None:
    query, target = written(quick_path / "query", 2), s3.new_folder()
    done = branch(query.location, target, options=s3.options)
    assert all(each.digest.sum is not None for each in done.states)
    assert done.copied_bytes > 0


def test_a_batch_that_is_not_there_is_refused(quick_path: Path) -> None:
    query, target = written(quick_path / "query", 2, batches=4), quick_path / "never"
    for wrong in (4, -1, True, "1"):
        with pytest.raises(InvalidInputError, match=r"has no batch|must be a whole number"):
            branch(query.location, target, batch=wrong)  # type: ignore[arg-type]
    query.purge(2)
    for gone in (0, 2):  # the offsets of the batch before are needed, too
        with pytest.raises(NotFoundError, match=rf"logs of batch {gone}: it has those of 1 batches, from 3 on"):
            branch(query.location, target, batch=gone)
    with pytest.raises(LifecycleError, match="no batch of the query has been committed"):
        branch(Query(str(quick_path / "empty"), 2).location, target)
    assert not target.exists()


def test_an_interrupted_branch_is_finished_by_the_same_call(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query, target = written(quick_path / "query", 2), quick_path / "branch"
    with monkeypatch.context() as patched:
        patched.setattr("pyspark_ckpt.state_store.savepoints.restoring.query_restore.copy_operators", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            branch(query.location, target)
    with pytest.raises(InvalidInputError):
        stored(str(target))
    assert branch(query.location, target).version == query.version
    assert stored(str(target)) == (query.version, 2, query.rows)
