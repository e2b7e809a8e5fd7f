"""What ``list`` and ``inspect`` show of a checkpoint as a query leaves it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import VERSIONS, arguments, run
from tests.labs.lab import QUERY, Lab, row_key


def test_list_counts_versions_and_snapshots(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "list", str(lab.checkpoint))
    assert code == 0
    assert f"query {QUERY}, version {VERSIONS}" in text
    assert "operator 0: stateStoreSave" in text
    code, text = run(capsys, "list", str(lab.checkpoint), "--json")
    (store,) = json.loads(text)["stores"]
    assert (store["first_version"], store["last_version"], store["deltas"], store["snapshots"]) == (1, 5, 5, 2)
    assert store["lag"] == 1


def test_inspect_shows_lineage_and_key_groups(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "inspect", str(lab.checkpoint), "--lineage", "--key-groups")
    assert code == 0
    snapshot, delta = max(lab.objects(".snapshot")), max(lab.objects(".delta"))
    assert f"snapshot 4 ({snapshot[21:29]})  {VERSIONS} ({delta[21:29]})\n" in text
    code, text = run(capsys, "inspect", str(lab.checkpoint), "--lineage", "--key-groups", "--json")
    (store,) = json.loads(text)["stores"]
    counts = store["rows_by_key_groups"]
    assert (len(counts), sum(counts.values())) == (32, VERSIONS)
    hashes = [int.from_bytes(row_key(1, f"key-{version}")[2:6], "big") for version in range(1, VERSIONS + 1)]
    assert counts["0..1023"] == sum(value < 1 << 27 for value in hashes)
    assert store["lineage"] == [
        {"kind": "snapshot", "version": 4, "commit_id": snapshot[21:53]},
        {"kind": "delta", "version": VERSIONS, "commit_id": delta[21:53]},
    ]


def test_an_operator_with_column_families_is_found_by_its_newest_metadata(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    first = lab.checkpoint / "state" / "0" / "_metadata" / "metadata"
    content = first.read_text().replace("v1", "v2", 1)
    first.unlink()
    (first.parent / "v2").mkdir()
    for batch in (9, 10):
        (first.parent / "v2" / str(batch)).write_text(content.replace("stateStoreSave", f"join {batch}"))
    code, text = run(capsys, "list", str(lab.checkpoint))
    assert (code, "operator 0: join 10" in text) == (0, True), text


def test_what_is_no_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "list", str(tmp_path))
    assert code == 2
    assert f"{tmp_path} is not a checkpoint of a query" in text
    code, text = run(capsys, "list", str(tmp_path), "-o", "s3Endpont=x")
    assert code == 2
    assert "Did you mean 's3Endpoint'?" in text


@pytest.mark.parametrize("kind", ["folder", "s3"], indirect=True)
def test_inspect_shows_states_and_rows(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "inspect", *arguments(lab))
    assert code == 0
    assert "operator 0: stateStoreSave" in text
    assert "█" in text
    code, text = run(capsys, "inspect", *arguments(lab), "--json", "--version", "3")
    (store,) = json.loads(text)["stores"]
    assert (store["rows"], [state["state"] for state in store["states"]]) == (3, ["default"])
