"""Fail points act once, at their turn, and survive a restart as fired."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from pyspark_ckpt.state_store.errors import InvalidInputError, StorageError
from pyspark_ckpt.state_store.failpoints import AFTER_WRITE, FOLDER, REQUESTS, FailPoints
from tests.conftest import MakeLab
from tests.labs.lab import CallError

T = TypeVar("T")


def test_a_point_fires_once_at_its_turn(tmp_path: Path) -> None:
    points = FailPoints("commit.before_upload:error@2", tmp_path)
    points.hit("commit.before_upload")
    points.hit("commit.after_upload")
    with pytest.raises(StorageError):
        points.hit("commit.before_upload")
    points.hit("commit.before_upload")
    again = FailPoints("commit.before_upload:error@2", tmp_path)
    again.hit("commit.before_upload")
    again.hit("commit.before_upload")


def test_a_point_can_wait(tmp_path: Path) -> None:
    points = FailPoints("begin.before:sleep=50", tmp_path)
    started = time.monotonic()
    points.hit("begin.before")
    assert time.monotonic() - started >= 0.05


def test_a_point_can_hold_until_its_mark_is_removed(tmp_path: Path) -> None:
    points = FailPoints("begin.before:hold", tmp_path)
    mark = tmp_path / FOLDER / "begin.before-hold"
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(points.hit, "begin.before")
        while not mark.exists():
            time.sleep(0.01)
        assert not held.done()
        mark.unlink()
        held.result(10)


def test_a_write_whose_answer_is_lost_may_have_been_carried_out(tmp_path: Path) -> None:
    for name, outcome in ((AFTER_WRITE, "unknown"), ("place.before_write", "not_applied")):
        with pytest.raises(StorageError) as caught:
            FailPoints(f"{name}:error", tmp_path).hit(name)
        assert caught.value.outcome == outcome


@pytest.mark.parametrize("spec", ["nonsense", "begin.before", "begin.before:explode", "no.such.point:kill"])
def test_a_bad_spec_is_refused(tmp_path: Path, spec: str) -> None:
    with pytest.raises(InvalidInputError):
        FailPoints(spec, tmp_path)


@pytest.mark.parametrize("name", ["commit.before_upload", "commit.after_upload"])
def test_a_commit_that_fails_leaves_the_base_usable(make_lab: MakeLab, name: str) -> None:
    lab = make_lab(failPoints=f"{name}:error@2")
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    with pytest.raises(CallError) as caught:
        lab.grow(handle, 1, 1, base)
    assert caught.value.kind == "StorageError"
    (again,) = lab.grow(handle, 1, 1, base)
    assert lab.begin(handle, 2, again).rows == {"key-1": "value-1", "key-2": "value-2"}


@pytest.mark.parametrize("name", ["commit.before_ingest", "commit.after_ingest"])
def test_a_commit_stands_when_the_local_database_cannot_follow(make_lab: MakeLab, name: str) -> None:
    lab = make_lab(failPoints=f"{name}:error@2")
    handle = lab.open()
    ids = lab.grow(handle, 2)
    txn = lab.begin(handle, 2, ids[-1])
    assert txn.rows == {"key-1": "value-1", "key-2": "value-2"}
    assert lab.grow(handle, 1, 2, ids[-1])


@pytest.mark.parametrize("name", ["snapshot.before_manifest", "snapshot.after_manifest", "cleanup.before_delete"])
def test_maintenance_that_fails_is_made_good_by_the_next(make_lab: MakeLab, name: str) -> None:
    lab = make_lab(failPoints=f"{name}:error", retentionGracePeriod="0")
    handle = lab.open(keep=0)
    ids = lab.grow(handle, 3)
    lab.begin(handle, 3, ids[-1]).abort()
    failures = 0
    for method in ("snapshot", "cleanup", "snapshot", "cleanup", "cleanup"):
        more = {"force": True} if method == "snapshot" else {}
        try:
            lab.server.call(method, handle=handle, **more)
        except CallError:
            failures += 1
    assert failures == 1
    assert len(lab.objects(".snapshot")) == 1
    assert len(lab.objects(".delta")) == 0
    lab.restart(lose_local=True)
    assert len(lab.begin(lab.open(), 3, ids[-1]).rows) == 3


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("fmt", [1, 2])
def test_a_request_that_fails_is_no_loss(make_lab: MakeLab, fmt: int, name: str) -> None:
    points = ",".join(f"{name}:error@{number}" for number in (1, 3, 6))
    lab, ids = make_lab(failPoints=points, retentionGracePeriod="0"), list[str]()
    handle = lab.open(fmt=fmt, keep=2)

    for version in range(8):
        base = ids[-1] if ids else None
        ids += _repeat(partial(lab.grow, handle, 1, version, base))
        _repeat(partial(lab.server.call, "snapshot", handle=handle, force=True))
        _repeat(partial(lab.server.call, "cleanup", handle=handle))
        if version % 3 == 2:
            lab.restart(lose_local=True)
            handle = lab.open(fmt=fmt, keep=2)
    assert set(lab.begin(handle, 8, ids[-1]).rows) == {f"key-{number}" for number in range(1, 9)}
    assert list(lab.local_dir.parent.rglob(f"{FOLDER}/{name}-error*"))


def _repeat(call: Callable[[], T]) -> T:
    for _ in range(4):
        with suppress(CallError):
            return call()
    return call()
