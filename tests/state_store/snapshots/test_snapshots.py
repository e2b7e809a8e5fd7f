"""Snapshots: when they are made, of which version, and which objects they upload, share or give up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import MakeLab
from tests.labs.lab import Lab, expected, grown, snapshot


def test_every_version_restores_when_the_machine_is_lost(lab: Lab) -> None:
    _, ids = grown(lab, 7, 3)
    for version in range(1, 8):
        lab.restart(lose_local=True)
        assert lab.begin(lab.open(), version, ids[version - 1]).rows == expected(version)


def test_a_snapshot_uploads_only_what_is_new(lab: Lab) -> None:
    handle = lab.open()
    txn = lab.begin(handle, 0)
    for number in range(5000):
        txn.put(f"big-{number}", f"{number}" * 10)
    done = txn.commit()
    lab.begin(handle, 1, done["id"]).abort()
    first = snapshot(lab, handle)["metrics"]
    (last,) = lab.grow(handle, 1, 1, done["id"])
    lab.begin(handle, 2, last).abort()
    second = snapshot(lab, handle)["metrics"]
    assert (first["uploaded_files"], second["uploaded_files"], second["reused_files"]) == (1, 1, 1)
    assert second["uploaded_bytes"] < first["uploaded_bytes"] / 10
    assert snapshot(lab, handle)["version"] is None
    lab.restart(lose_local=True)
    (more,) = lab.grow(lab.open(), 1, 2, last)
    handle = lab.open()
    lab.begin(handle, 3, more).abort()
    assert snapshot(lab, handle)["metrics"]["reused_files"] == 2  # known from the manifest, after a restore


def test_full_snapshots_share_no_object(make_lab: MakeLab) -> None:
    lab = make_lab(snapshotMode="full", retentionGracePeriod="0")
    handle, ids = grown(lab, 4, 2)
    tables = lab.objects(".sst")
    assert len(tables) == 2 + 4, "every commit's file in each snapshot"
    lab.begin(handle, 4, ids[-1]).abort()
    lab.restart(lose_local=True)
    for name in tables[:2]:
        (lab.remote / name).unlink()
    assert lab.begin(lab.open(), 4, ids[-1]).rows == expected(4)


def test_a_snapshot_is_made_only_when_it_is_due(make_lab: MakeLab) -> None:
    lab = make_lab(snapshotEveryVersions="4")
    handle, ids = lab.open(), list[str]()
    published = []
    for _ in range(10):
        ids += lab.grow(handle, 1, len(ids), ids[-1] if ids else None)
        published.append(snapshot(lab, handle, force=False)["version"])
    assert [version for version in published if version] == [4, 8]
    lab.restart(lose_local=True)
    handle = lab.open()
    lab.begin(handle, 10, ids[-1]).abort()
    assert snapshot(lab, handle, force=False)["version"] is None  # the last one is found remotely


@pytest.mark.parametrize("fmt", [1, 2])
def test_the_last_batch_is_in_a_snapshot_once_the_commit_log_has_it(fmt: int, make_lab: MakeLab) -> None:
    lab = make_lab(snapshotEveryVersions="2")
    handle = lab.open(fmt=fmt)
    ids = lab.grow(handle, 2)
    lab.server.settled()
    assert snapshot(lab, handle, force=False)["version"] is None
    lab.log_commit(1, [ids[-1]] if fmt == 2 else None)
    assert snapshot(lab, handle, force=False)["version"] == 2
    assert snapshot(lab, handle, force=False)["version"] is None


def test_the_last_commit_is_in_no_snapshot_when_the_commit_log_names_another(make_lab: MakeLab) -> None:
    lab = make_lab(snapshotEveryVersions="2")
    handle = lab.open()
    (first,) = lab.grow(handle, 1)
    other, own = (lab.begin(handle, 1, first).commit()["id"] for _ in range(2))
    lab.server.settled()
    assert other != own
    lab.log_commit(1, [other])
    assert snapshot(lab, handle, force=False)["version"] is None


def test_a_loser_is_never_the_version_of_a_snapshot(lab: Lab) -> None:
    handle = lab.open()
    (base,) = lab.grow(handle, 1)
    lab.begin(handle, 1, base).commit()
    assert snapshot(lab, handle)["version"] == 1


def test_a_lost_table_is_uploaded_again_by_the_next_snapshot(lab: Lab) -> None:
    handle, ids = grown(lab, 3, 3)
    (lab.remote / lab.objects(".sst")[0]).unlink()
    ids += lab.grow(handle, 1, 3, ids[-1])
    lab.begin(handle, 4, ids[-1]).abort()
    assert snapshot(lab, handle)["version"] == 4
    lab.restart(lose_local=True)
    txn = lab.begin(lab.open(), 4, ids[-1])
    assert txn.rows == expected(4)
    assert txn.answer["metrics"]["replayed_deltas"] == 0


def delete_tables(lab: Lab, _: list[str]) -> None:
    """What a clean-up does that did not see the manifest."""
    for name in lab.objects(".sst"):
        (lab.remote / name).unlink()


def clean_up_elsewhere(lab: Lab, ids: list[str]) -> None:
    other = Lab(lab.local_dir.with_name("elsewhere"), retentionGracePeriod="0")
    other.checkpoint = lab.checkpoint
    handle = other.open(keep=1)
    other.begin(handle, len(ids), ids[-1]).abort()
    other.server.call("cleanup", handle=handle)
    other.server.stores.shut_down()


@pytest.mark.parametrize(
    ("point", "harm"), [("snapshot.before_manifest", clean_up_elsewhere), ("snapshot.after_manifest", delete_tables)]
)
def test_a_snapshot_is_given_up_when_its_tables_are_deleted_meanwhile(
    make_lab: MakeLab, point: str, harm: Callable[[Lab, list[str]], None], caplog: pytest.LogCaptureFixture
) -> None:
    lab = make_lab(failPoints=f"{point}:sleep=2000", retentionGracePeriod="0")
    handle = lab.open()
    ids = lab.grow(handle, 3)
    lab.begin(handle, 3, ids[-1]).abort()
    answers: list[dict[str, Any]] = []
    making = threading.Thread(target=lambda: answers.append(snapshot(lab, handle)))
    making.start()
    while not (lab.local_dir / "failpoints").exists():
        time.sleep(0.01)
    harm(lab, ids)
    assert making.is_alive()
    assert lab.objects(".sst") == []
    making.join()
    assert answers[0]["version"] is None
    assert lab.objects(".snapshot") == []
    assert "retentionGracePeriod" in caplog.text
    ids += lab.grow(handle, 3, 3, ids[-1])
    handle = lab.open(keep=1)
    lab.begin(handle, 6, ids[-1]).abort()
    lab.server.call("cleanup", handle=handle)
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(), 6, ids[-1]).rows == expected(6)


def test_a_closed_store_ends_a_snapshot_quietly(lab: Lab) -> None:
    handle, _ = grown(lab, 3, 5)
    maintenance = lab.server.stores.handle(handle).maintenance
    lab.server.call("close", handle=handle)
    assert maintenance.snapshot(force=True)[0] is None
