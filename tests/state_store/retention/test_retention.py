"""Retention deletes what no version needs that may be asked for, and nothing young, foreign or in doubt."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.retention.collector import Collector
from tests.conftest import MakeLab
from tests.labs.lab import CallError, Lab, damage, expected, grown, snapshot


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
