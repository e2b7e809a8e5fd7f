"""When a snapshot is due, how long a restore is expected to take, and what a commit reports of both."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.snapshots.lag import SnapshotLag
from pyspark_ckpt.state_store.snapshots.policy import SnapshotPolicy
from pyspark_ckpt.state_store.snapshots.restore_forecast import RestoreForecast
from tests.conftest import MakeLab
from tests.labs.lab import Lab, expected

MIB = 1 << 20
RARELY = {"snapshotEveryVersions": "1000"}


def published(lab: Lab, handle: int, ids: list[str]) -> int | None:
    """Commit once more, and let maintenance make a snapshot if one is due."""
    ids += lab.grow(handle, 1, len(ids), ids[-1] if ids else None)
    lab.begin(handle, len(ids), ids[-1]).abort()
    version: int | None = lab.server.call("snapshot", handle=handle)["version"]
    return version


def test_a_snapshot_is_due_when_the_deltas_have_grown_large(make_lab: MakeLab) -> None:
    lab = make_lab(snapshotEveryBytes="4k", **RARELY)
    handle, ids, versions, bytes_at = lab.open(), list[str](), list[int](), list[int]()
    while len(versions) < 2:
        version = published(lab, handle, ids)
        since = versions[-1] if versions else 0
        size = sum((lab.remote / name).stat().st_size for name in lab.objects(".delta")[since:])
        assert (version is not None) == (size >= 4096)
        versions += [version] if version else []
        bytes_at.append(size)
    assert len(bytes_at) > 3, "some commits were not due"


def test_a_snapshot_is_due_when_the_deltas_have_grown_old(make_lab: MakeLab) -> None:
    lab = make_lab(snapshotInterval="1h", **RARELY)
    handle, ids = lab.open(), list[str]()
    store = lab.server.stores.handle(handle).store
    assert published(lab, handle, ids) is None
    for version, (size, written_s) in store.lag._commits.items():
        store.lag._commits[version] = (size, written_s - 3601)
    assert published(lab, handle, ids) == 2
    assert published(lab, handle, ids) is None


def test_a_snapshot_is_due_when_a_restore_would_take_too_long(make_lab: MakeLab) -> None:
    lab = make_lab(restoreTarget="1s", **RARELY)
    handle, ids = lab.open(), list[str]()
    assert published(lab, handle, ids) is None
    forecast = lab.server.stores._resources.forecast
    for _ in range(50):
        forecast.note_ingest(1, 2.0)
    assert published(lab, handle, ids) == 2


def test_a_target_that_no_snapshot_can_keep_is_warned_of_when_one_is_made(
    make_lab: MakeLab, caplog: pytest.LogCaptureFixture
) -> None:
    lab = make_lab(restoreTarget="1s")
    handle, ids = lab.open(), list[str]()
    published(lab, handle, ids)
    for _ in range(50):
        lab.server.stores._resources.forecast.note_write(1, 9.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            lab.server.call("snapshot", handle=handle, force=True)
            published(lab, handle, ids)
    assert caplog.text.count("restoreTarget") == 1


@pytest.mark.parametrize(
    ("lag", "table_bytes", "due"),
    [
        (SnapshotLag(5, 0, 0, 0.0), 10_000 * MIB, False),  # nothing to gain
        (SnapshotLag(0, 9, 600 * MIB, 0.0), 0, False),  # 13 s
        (SnapshotLag(0, 9, 6_000 * MIB, 0.0), 0, True),
        (SnapshotLag(5, 9, 600 * MIB, 0.0), 2_500 * MIB, True),
        (SnapshotLag(5, 9, 30 * MIB, 0.0), 25_000 * MIB, False),  # the snapshot alone takes longer
    ],
)
def test_the_target_counts_what_a_snapshot_can_change(lag: SnapshotLag, table_bytes: int, *, due: bool) -> None:
    policy = SnapshotPolicy(parse({"snapshotEveryBytes": "0", "restoreTarget": "60"}), RestoreForecast())
    assert (policy.reason(lag, table_bytes, 0.0) is not None) == due


def test_a_forecast_follows_what_was_seen() -> None:
    forecast, lag = RestoreForecast(), SnapshotLag(1, 16, 16 * MIB, 0.0)
    for _ in range(50):
        forecast.note_write(1000, 0.2)
        forecast.note_write(100 * MIB, 60.0)  # a large object says nothing of a request
        forecast.note_transfer(1000, 3.0)  # nor a small one of the rate
        forecast.note_transfer(64 * MIB, 4.0)
        forecast.note_ingest(16, 1.6)
    assert forecast.snapshot_s(160 * MIB) == pytest.approx(3 * 0.2 + 10.0, rel=0.01)
    assert forecast.deltas_s(lag) == pytest.approx(2 * 0.2 + 1.0 + 16 * 0.1, rel=0.01)


def test_a_commit_reports_its_requests_and_what_a_restore_would_take(lab: Lab) -> None:
    handle, ids = lab.open(), list[str]()
    for version in range(1, 4):
        txn = lab.begin(handle, version - 1, ids[-1] if ids else None)
        txn.put("key", "value")
        answer = txn.commit()
        ids.append(answer["id"])
        metrics = answer["metrics"]
        assert (metrics["write_requests"], metrics["uploaded_bytes"]) == (1, metrics["delta_bytes"])
        assert {metrics[f"{kind}_requests"] for kind in ("read", "list", "delete")} == {0}
        assert metrics["deltas_since_snapshot"] == version
        assert metrics["restore_forecast_ms"] > 0
    lab.begin(handle, 3, ids[-1]).abort()
    lab.server.settled()
    uploaded = lab.server.call("snapshot", handle=handle, force=True)["metrics"]
    (last,) = lab.grow(handle, 1, 3, ids[-1])
    metrics = lab.begin(handle, 4, last).commit()["metrics"]
    assert metrics["snapshot_version"] == 3
    assert metrics["deltas_since_snapshot"] == 2
    assert metrics["delta_bytes_since_snapshot"] < sum(
        (lab.remote / name).stat().st_size for name in lab.objects(".delta")
    )
    assert 0 < metrics["tables"] <= 5
    assert metrics["table_bytes"] > 0
    assert uploaded["uploaded_bytes"] > 0


def test_the_lag_is_known_when_a_store_was_restored_or_went_on_with_local_copies(lab: Lab) -> None:
    ids = lab.grow_with_snapshots(5)
    lab.restart(lose_local=True)
    metrics = lab.begin(lab.open(), 5, ids[-1]).commit()["metrics"]
    assert (metrics["snapshot_version"], metrics["deltas_since_snapshot"]) == (4, 2)
    assert metrics["list_requests"] == 1
    assert metrics["read_requests"] >= 3, "a manifest, a table file and a delta"
    assert metrics["downloaded_bytes"] > 0
    lab.restart()
    handle = lab.open()
    txn = lab.begin(handle, 5, ids[-1])
    assert "deltas_since_snapshot" not in txn.commit()["metrics"], "nothing was read, so it is not known"
    lab.begin(handle, 5, ids[-1]).abort()
    lab.server.call("snapshot", handle=handle)
    assert lab.begin(handle, 5, ids[-1]).commit()["metrics"]["deltas_since_snapshot"] == 2


def test_a_query_that_goes_back_behind_the_snapshot_gets_one_when_it_is_due_again(make_lab: MakeLab) -> None:
    lab = make_lab(snapshotEveryVersions="3")
    handle, ids = lab.open(), list[str]()
    assert [published(lab, handle, ids) for _ in range(7)] == [None, None, 3, None, None, 6, None]
    del ids[2:]
    assert [published(lab, handle, ids) for _ in range(4)] == [3, None, None, 6]
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(), 6, ids[5]).rows == expected(6)


def test_a_snapshot_has_few_objects_when_many_small_commits_were_made(lab: Lab) -> None:
    handle = lab.open()
    ids = lab.grow(handle, 120)
    lab.begin(handle, 120, ids[-1]).abort()
    lab.server.settled()
    lab.server.call("snapshot", handle=handle, force=True)
    assert len(lab.objects(".sst")) < 20


@pytest.mark.parametrize(
    ("key", "value"), [("restoreTarget", "0"), ("snapshotEveryBytes", "-1"), ("snapshotInterval", "x")]
)
def test_bad_settings_of_the_policy_are_refused_by_name(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(Exception, match=key):
        Lab(tmp_path, **{key: value})
