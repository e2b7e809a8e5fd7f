"""Snapshots, restore with and without damage, and retention."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.manifest import decode
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import seal_json, unseal
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.retention.collector import Collector
from tests.conftest import MakeLab
from tests.labs.lab import CallError, Lab, damage, expected


def snapshot(lab: Lab, handle: int, *, force: bool = True) -> dict[str, Any]:
    return lab.server.call("snapshot", handle=handle, force=force)


def grown(lab: Lab, versions: int, every: int) -> tuple[int, list[str]]:
    """A store of ``versions`` versions with a snapshot of every ``every``-th."""
    handle, ids = lab.open(), list[str]()
    while len(ids) < versions:
        ids += lab.grow(handle, min(every, versions - len(ids)), len(ids), ids[-1] if ids else None)
        lab.begin(handle, len(ids), ids[-1]).abort()
        snapshot(lab, handle)
    return handle, ids


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


@pytest.mark.parametrize("what", ["manifest", "table", "missing manifest content", "missing table"])
def test_an_older_snapshot_takes_over_when_the_newest_is_damaged(
    lab: Lab, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, ids = grown(lab, 7, 3)
    manifest = lab.remote / lab.objects(".snapshot")[-1]
    newest_table = max((lab.remote / "sst").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    if what == "manifest":
        damage(manifest)
    elif what == "table":
        damage(newest_table)
    elif what == "missing manifest content":
        manifest.write_bytes(b"")
    else:
        newest_table.unlink()
    lab.restart(lose_local=True)
    txn = lab.begin(lab.open(), 7, ids[-1])
    assert txn.rows == expected(7)
    assert txn.answer["metrics"]["replayed_deltas"] == 1
    assert manifest.name in caplog.text or newest_table.name in caplog.text


def test_a_damaged_delta_is_named_when_nothing_can_replace_it(lab: Lab) -> None:
    _, ids = grown(lab, 5, 3)
    (path,) = lab.remote.glob(f"{4:020d}-*.delta")
    for harm in (damage, Path.unlink):
        harm(path)
        (lab.remote / f"{5:020d}-{ids[4]}.snapshot").unlink(missing_ok=True)
        lab.restart(lose_local=True)
        with pytest.raises(CallError) as caught:
            lab.begin(lab.open(), 5, ids[4])
        assert caught.value.kind in ("FormatError", "NotFoundError")
        assert "version 4" in caught.value.message or path.name in caught.value.message
        assert "backup" in caught.value.hint
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(), 3, ids[2]).rows == expected(3)


def test_a_newer_format_is_refused_by_name(lab: Lab) -> None:
    _, ids = grown(lab, 3, 3)
    for path in lab.remote.glob("*.delta"):
        path.unlink()
    (path,) = lab.remote.glob("*.snapshot")
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    lab.restart(lose_local=True)
    with pytest.raises(CallError, match="format 99"):
        lab.begin(lab.open(), 3, ids[2])


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "CURRENT/../x", "000001.sst\0"])
def test_a_manifest_cannot_name_files_outside(lab: Lab, name: str, caplog: pytest.LogCaptureFixture) -> None:
    _, ids = grown(lab, 3, 3)
    (path,) = lab.remote.glob("*.snapshot")
    manifest = json.loads(unseal(path.read_bytes(), path.name))
    manifest["files"][0]["name"] = name
    path.write_bytes(seal_json(json.dumps(manifest).encode()))
    with pytest.raises(FormatError, match=r"list of files|is damaged: .* at `\$\.files\[0\]\.name`"):
        decode(path.read_bytes(), path.name)
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(), 3, ids[2]).answer["metrics"]["replayed_deltas"] == 3
    assert f"{path.name} is damaged" in caplog.text or "its list of files is not that of a" in caplog.text


def test_local_copies_are_used_when_a_killed_server_comes_back(lab: Lab) -> None:
    ids = lab.grow(lab.open(), 5)
    lab.server.settled()
    lab.restart()
    handle = lab.open()
    for path in lab.remote.iterdir():
        path.unlink()
    assert lab.begin(handle, 5, ids[4]).rows == expected(5)
    assert lab.begin(handle, 4, ids[3]).rows == expected(4)


def test_local_copies_that_nobody_asks_for_go_when_an_hour_is_over(lab: Lab) -> None:
    lab.grow(lab.open(), 1)
    lab.partition = 4
    (kept,) = lab.grow(lab.open(), 1)
    lab.restart()
    folders = lab.local_dir / "stores"
    handle = lab.open()
    assert len(list(folders.iterdir())) == 2
    lab.server.stores._started -= 3601
    lab.open()
    lab.server.settled()
    (left,) = folders.iterdir()
    assert left.name.startswith("0-4-")
    assert lab.begin(handle, 1, kept).rows == expected(1)


def test_local_copies_are_dropped_when_the_machine_was_booted_again(lab: Lab) -> None:
    ids = lab.grow(lab.open(), 3)
    (lab.local_dir / "boot").write_text("another")
    lab.restart()
    assert lab.begin(lab.open(), 3, ids[2]).answer["metrics"]["restored"] == 1


def test_a_local_copy_that_is_damaged_is_replaced(lab: Lab) -> None:
    ids = lab.grow(lab.open(), 3)
    lab.server.settled()
    for path in lab.local_dir.rglob("MANIFEST-*"):
        path.write_bytes(b"rubbish")
    lab.restart()
    assert lab.begin(lab.open(), 3, ids[2]).rows == expected(3)


def lose_a_table_of_the_copy(lab: Lab, version: int) -> None:
    """What a cleaner of temporary folders does to a frozen copy."""
    (meta,) = lab.local_dir.glob(f"stores/*/*/{version:020d}-*.json")
    max((meta.parent / "db").glob("*.sst")).unlink()


def test_a_damaged_local_copy_is_replaced_when_it_is_asked_for(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    handle = lab.open()
    ids = lab.grow(handle, 3)
    lab.server.settled()
    lose_a_table_of_the_copy(lab, 2)
    txn = lab.begin(handle, 2, ids[1])
    assert txn.rows == expected(2)
    assert txn.answer["metrics"]["restored"] == 1
    assert "the local copy of version 2" in caplog.text
    assert lab.begin(handle, 2, ids[1]).answer["metrics"]["restored"] == 0
    assert lab.begin(handle, 3, ids[2]).rows == expected(3)


def test_a_damaged_local_copy_is_passed_over_when_a_later_version_is_restored(lab: Lab) -> None:
    handle = lab.open()
    ids = lab.grow(handle, 3)
    lab.begin(handle, 3, ids[2])  # keeps version 3 live
    sibling = lab.begin(handle, 2, ids[1]).commit()["id"]
    lose_a_table_of_the_copy(lab, 2)
    assert lab.begin(handle, 3, sibling).rows == expected(2)


def test_shutting_down_removes_the_local_copies(lab: Lab) -> None:
    lab.grow(lab.open(), 3)
    lab.server.stores.shut_down()
    assert list((lab.local_dir / "stores").iterdir()) == []


def test_retention_keeps_what_may_be_asked_for(lab: Lab) -> None:
    handle, ids = grown(lab, 20, 3)
    handle = lab.open(keep=5)
    lab.begin(handle, 20, ids[-1]).abort()
    assert lab.server.call("cleanup", handle=handle)["deleted"] > 20
    assert [int(name[:20]) for name in lab.objects(".snapshot")] == [15, 18, 20]
    assert [int(name[:20]) for name in lab.objects(".delta")] == [16, 17, 18, 19, 20]
    for version in range(15, 21):
        lab.restart(lose_local=True)
        assert lab.begin(lab.open(), version, ids[version - 1]).rows == expected(version)
    lab.restart(lose_local=True)
    with pytest.raises(CallError, match="retired") as caught:
        lab.begin(lab.open(), 10, ids[9])
    assert caught.value.kind == "NotFoundError"
    assert "minBatchesToRetain" in caught.value.hint


@pytest.mark.parametrize("what", ["table", "manifest"])
def test_retention_keeps_what_is_below_a_snapshot_that_is_not_complete(
    lab: Lab, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, ids = grown(lab, 20, 3)
    tables = {
        int(name[:20]): {file.get("object") for file in json.loads((lab.remote / name).read_text())["files"]}
        for name in lab.objects(".snapshot")
    }
    manifest = lab.remote / f"{15:020d}-{ids[14]}.snapshot"
    if what == "manifest":
        damage(manifest)
    else:
        for name in tables[15] - tables[12]:
            (lab.remote / name).unlink()
    handle = lab.open(keep=5)
    lab.begin(handle, 20, ids[-1]).abort()
    lab.server.call("cleanup", handle=handle)
    assert [int(name[:20]) for name in lab.objects(".snapshot")] == [12, 15, 18, 20]
    assert [int(name[:20]) for name in lab.objects(".delta")] == list(range(13, 21))
    assert manifest.name in caplog.text
    for version in range(15, 21):
        lab.restart(lose_local=True)
        assert lab.begin(lab.open(), version, ids[version - 1]).rows == expected(version)


def swap(path: Path) -> None:
    """Have the content of another manifest, which is whole."""
    path.write_bytes(max(path.parent.glob("*.snapshot")).read_bytes())


@pytest.mark.parametrize("harm", [swap, damage, Path.unlink])
@pytest.mark.parametrize("gc", [False, True])
def test_retention_keeps_the_tables_of_a_snapshot_whose_manifest_may_be_put_back(
    lab: Lab, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture, *, gc: bool
) -> None:
    lab.name_query()
    handle, ids = grown(lab, 6, 6)
    ids += lab.grow(handle, 4, 6, ids[-1])
    for batch, commit_id in enumerate(ids):
        lab.log_commit(batch, [commit_id])
    handle = lab.open(keep=1)
    lab.begin(handle, 10, ids[-1]).abort()
    lab.server.call("cleanup", handle=handle)
    (manifest,) = lab.remote.glob("*.snapshot")
    assert [int(name[:20]) for name in lab.objects(".delta")] == [7, 8, 9, 10]
    content = manifest.read_bytes()
    snapshot(lab, handle)
    harm(manifest)
    ids += lab.grow(handle, 1, 10, ids[-1])
    lab.begin(handle, 11, ids[-1]).abort()
    if gc:
        lab.log_commit(10, [ids[-1]])
        checkpoint, store = Checkpoint(str(lab.checkpoint), parse({})), Identity(0, 3, "default")
        with closing(Collector(checkpoint, 4, 0.0)) as collector:
            assert [blob.name for blob in collector.find(store).blobs] == []
            assert collector.clean(store) == 0
    else:
        handle = lab.open(keep=4)
        lab.begin(handle, 11, ids[-1]).abort()
        for _ in range(2):
            lab.server.call("cleanup", handle=handle)
    assert manifest.name in caplog.text
    manifest.write_bytes(content)
    for version in range(7, 12):
        lab.restart(lose_local=True)
        assert lab.begin(lab.open(), version, ids[version - 1]).rows == expected(version)


def test_retention_keeps_what_is_below_a_snapshot_until_that_has_stood_a_while(make_lab: MakeLab) -> None:
    lab = make_lab(retentionGracePeriod="1h")
    _, ids = grown(lab, 6, 3)
    before = lab.objects()
    handle = lab.open(keep=0)
    lab.server.call("cleanup", handle=handle)
    assert lab.objects() == before
    for name in lab.objects(".snapshot"):
        os.utime(lab.remote / name, (time.time() - 61,) * 2)
    (last,) = lab.grow(handle, 1, 6, ids[-1])
    lab.begin(handle, 7, last).abort()
    assert lab.server.call("cleanup", handle=handle)["deleted"] == 7
    assert [int(name[:20]) for name in lab.objects(".delta")] == [7]


def test_retention_keeps_siblings_until_the_commit_log_has_decided(lab: Lab) -> None:
    handle, ids = grown(lab, 6, 3)
    old = lab.begin(handle, 2, ids[1]).commit()
    young = lab.begin(handle, 5, ids[4]).commit()
    handle = lab.open(keep=2)
    lab.begin(handle, 6, ids[5]).abort()
    lab.server.call("cleanup", handle=handle)
    names = " ".join(lab.objects(".delta"))
    assert young["id"] in names
    assert old["id"] not in names


def test_retention_spares_young_files_and_foreign_ones(make_lab: MakeLab) -> None:
    lab = make_lab(retentionGracePeriod="1h")
    handle, _ = grown(lab, 6, 3)
    (lab.remote / "_metadata").mkdir()
    (lab.remote / "_metadata" / "schema").write_text("Spark's")
    (lab.remote / "sst" / ("0" * 64 + "-00000000.sst")).write_bytes(b"in progress elsewhere")
    before = lab.objects(".sst")
    lab.server.call("cleanup", handle=handle)
    assert lab.objects(".sst") == before
    assert (lab.remote / "_metadata" / "schema").exists()


def test_retention_removes_orphans_only_after_two_looks(make_lab: MakeLab) -> None:
    lab = make_lab(retentionGracePeriod="1s")
    handle, ids = grown(lab, 3, 3)
    orphan = lab.remote / "sst" / ("0" * 64 + "-00000000.sst")
    orphan.write_bytes(b"left by a snapshot that was never published")
    os.utime(orphan, (1, 1))
    lab.server.call("cleanup", handle=handle)
    assert orphan.exists()
    time.sleep(1.1)
    lab.server.call("cleanup", handle=handle)
    assert not orphan.exists()
    lab.restart(lose_local=True)
    assert lab.begin(lab.open(), 3, ids[2]).rows == expected(3)


def test_retention_deletes_no_table_when_a_manifest_cannot_be_read(lab: Lab) -> None:
    _, ids = grown(lab, 6, 3)
    (lab.remote / f"{6:020d}-{ids[5]}.snapshot").write_bytes(b"rubbish")
    before = lab.objects(".sst")
    lab.server.call("cleanup", handle=lab.open(keep=0))
    assert lab.objects(".sst") == before


def test_a_closed_store_ends_a_snapshot_quietly(lab: Lab) -> None:
    handle, _ = grown(lab, 3, 5)
    maintenance = lab.server.stores.handle(handle).maintenance
    lab.server.call("close", handle=handle)
    assert maintenance.snapshot(force=True)[0] is None
