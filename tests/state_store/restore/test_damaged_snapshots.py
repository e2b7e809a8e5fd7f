"""Snapshots and deltas that are damaged or missing: an older snapshot takes over, or what is damaged is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.manifest import decode
from pyspark_ckpt.state_store.json_objects import seal_json, unseal
from tests.labs.lab import CallError, Lab, damage, expected, grown


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
