"""A version whose stored objects somebody has deleted is stored again from the local copy while the query runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import MakeLab
from tests.labs.lab import Lab, expected


def everything(remote: Path) -> None:
    shutil.rmtree(remote)


def first_delta(remote: Path) -> None:
    (path,) = remote.glob(f"{1:020d}-*.delta")
    path.unlink()


def newest_delta(remote: Path) -> None:
    max(remote.glob("*.delta")).unlink()


def maintain(lab: Lab, handle: int) -> None:
    """What Spark's maintenance does."""
    lab.server.call("snapshot", handle=handle)
    lab.server.call("cleanup", handle=handle)


@pytest.mark.parametrize("lose", [everything, first_delta, newest_delta])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_version_that_was_lost_is_stored_again(
    *, lose: Callable[[Path], None], restarts: bool, lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    handle = lab.open()
    ids = lab.grow(handle, 3)
    lose(lab.remote)
    if restarts:  # of the process alone: the local copies stay
        lab.server.settled()
        lab.restart()
        handle = lab.open("run-2")
    ids += lab.grow(handle, 1, 3, ids[-1])
    for _ in range(2):
        maintain(lab, handle)
    assert "has lost objects that a restore of version 3 " in caplog.text
    lab.restart(lose_local=True)
    assert lab.begin(lab.open("run-3"), 4, ids[-1]).rows == expected(4)


def test_a_process_that_another_one_has_replaced_stores_nothing_again(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    handle = lab.open()
    ids = lab.grow(handle, 3)
    lab.begin(handle, 3, ids[-1]).abort()
    for path in lab.remote.glob("*.delta"):  # as the other process's retention does
        path.rename(path.with_name(path.name.replace(path.name[:20], f"{int(path.name[:20]) + 20:020d}")))
    before = lab.objects()
    for _ in range(2):
        maintain(lab, handle)
    assert lab.objects() == before
    assert "has lost objects" not in caplog.text


def test_nothing_is_written_where_a_checkpoint_was_moved_away(lab: Lab) -> None:
    """A round of maintenance may still run when the query has stopped."""
    handle = lab.open()
    ids = lab.grow(handle, 3)
    lab.begin(handle, 3, ids[-1]).abort()
    lab.checkpoint.rename(lab.checkpoint.with_name("moved"))
    for _ in range(2):
        maintain(lab, handle)
        lab.server.call("snapshot", handle=handle, force=True)
    assert lab.objects() == []


def test_nothing_is_written_into_a_checkpoint_that_replaces_another(make_lab: MakeLab) -> None:
    """As that of a restore, at the same version."""
    lab = make_lab(retentionGracePeriod="0")
    handle = lab.open()
    ids = lab.grow(handle, 3)
    lab.begin(handle, 3, ids[-1]).abort()
    for path in lab.remote.glob("*.delta"):
        if path.name.startswith(f"{3:020d}"):
            path.rename(path.with_name(path.name.replace(ids[-1], "ab" * 16)))
        else:
            path.unlink()
    before = lab.objects()
    for _ in range(2):
        maintain(lab, handle)
    assert lab.objects() == before
