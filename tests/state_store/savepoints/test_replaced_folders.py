"""A call that was interrupted is finished only with what it began with: others may have replaced its folders since."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from pkgutil import resolve_name

import msgspec
import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.state_store.blobs import LocalPlace
from pyspark_ckpt.state_store.errors import CkptError, InvalidInputError
from pyspark_ckpt.state_store.json_objects import seal
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.deletion import delete
from pyspark_ckpt.state_store.savepoints.restoring.target_records import read_recorded
from pyspark_ckpt.state_store.savepoints.savepoint import Kind
from tests.labs.saved_query import SAVEPOINT_KINDS, files, find_step, stored, written
from tests.state_store.savepoints.replacements import branches, fail, replace, take

pytestmark = pytest.mark.usefixtures("in_this_process")


@pytest.mark.in_turn
@pytest.mark.parametrize("step", ["copy_logs", "copy_id", "is_complete", "forget"])
@pytest.mark.parametrize("partitions", [2, 3])
@pytest.mark.parametrize("kind", SAVEPOINT_KINDS)
def test_a_restore_is_not_finished_with_another_savepoint(
    kind: Kind,
    partitions: int,
    step: str,
    quick_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = branches(quick_path, operators=(0, 2))
    saved, target = quick_path / "saved", quick_path / "target"
    savepoints.savepoint(old.location, saved, kind=kind)
    savepoints.savepoint(new.location, quick_path / "newer", kind=kind)
    restore = partial(savepoints.restore, saved, target, parallelism=partitions)
    fail(monkeypatch, find_step(step), restore)
    replace(saved, quick_path / "newer")
    before, now = files(target), files(saved)
    for claim in ("no_claim", "claim"):
        with pytest.raises(InvalidInputError, match=f"{saved} has changed since") as refused:
            restore(claim=claim)
        assert "name a new folder" in refused.value.hint
        assert (files(target), files(saved)) == (before, now)
    savepoints.restore(saved, quick_path / "other", parallelism=partitions)
    assert stored(str(quick_path / "other")) == (3, partitions, new.rows)


def test_a_rescaling_is_not_finished_with_another_checkpoint(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = branches(quick_path, checkpoint_format=1)
    source, target = quick_path / "query", quick_path / "target"
    replace(source, Path(old.location))
    rescale = partial(savepoints.restore, source, target, parallelism=3)
    fail(monkeypatch, find_step("copy_logs"), rescale)
    replace(source, Path(new.location))
    before = files(target)
    with pytest.raises(InvalidInputError, match=f"{source} has changed since"):
        rescale()
    assert files(target) == before


def test_what_an_earlier_build_has_begun_is_not_finished(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It did not record what its source held."""
    query, target = written(quick_path / "query", 2, operators=(2,)), quick_path / "target"
    rescale = partial(savepoints.restore, query.location, target, parallelism=3)
    fail(monkeypatch, find_step("copy_logs"), rescale)
    place = LocalPlace(target)
    recorded, _ = read_recorded(place)
    assert recorded is not None
    place.put("_ckpt/restore/request.json", seal(msgspec.structs.replace(recorded, source_digest="", run="")))
    with pytest.raises(InvalidInputError, match="the release that began it did not record"):
        rescale()


def test_a_rescaling_is_finished_although_a_start_of_the_query_has_changed_its_files(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a schema that has evolved, in a run that failed before it committed anything."""
    query, target = written(quick_path / "query", 2, operators=(0,)), quick_path / "target"
    rescale = partial(savepoints.restore, query.location, target, parallelism=3)
    fail(monkeypatch, find_step("FinishedRequest"), rescale)
    name = "state/0/0/left/_metadata/schema"
    (Path(query.location) / name).write_bytes(b"\0\2v4")
    rescale()
    assert stored(str(target)) == (3, 3, query.rows)
    assert (target / name).read_bytes() == b"\0\2v4"


def test_a_restore_that_another_run_of_it_has_overtaken_does_not_say_that_it_is_unfinished(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, target = quick_path / "saved", quick_path / "target"
    take(written(quick_path / "query", 2, operators=(1,)), saved, "native")
    claim = partial(savepoints.restore, saved, target, claim="claim")
    copy_logs, left = resolve_name(find_step("copy_logs")), [claim]

    def overtaken(*args: object) -> object:
        if left:
            left.pop()()
        return copy_logs(*args)

    monkeypatch.setattr(find_step("copy_logs"), overtaken)
    with pytest.raises(CkptError) as failed:
        claim()
    assert "unfinished" not in failed.value.hint


def test_a_restore_that_was_cleaning_up_is_finished_although_its_savepoint_is_deleted(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, saved, target = written(quick_path / "query", 2, operators=(1,)), quick_path / "saved", quick_path / "target"
    take(query, saved, "native")
    restore = partial(savepoints.restore, saved, target)
    fail(monkeypatch, find_step("forget"), restore)
    delete(str(saved), parse({}))
    restore()
    assert files(target / "_ckpt") == {}
    assert stored(str(target)) == (3, 2, query.rows)


def test_a_rescaling_that_was_cleaning_up_says_that_its_source_has_gone_on(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, target = written(quick_path / "query", 2, operators=(1,)), quick_path / "target"
    rescale = partial(savepoints.restore, query.location, target, parallelism=3)
    fail(monkeypatch, find_step("forget"), rescale)
    query.run()
    with pytest.raises(InvalidInputError, match=f"and {query.location} is at version 4 now") as refused:
        rescale()
    assert "that checkpoint is complete" in refused.value.hint
