"""Savepoints of earlier releases are restored as they were taken, for any number of partitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pyspark_ckpt.cli.main import main
from pyspark_ckpt.savepoints import restore
from pyspark_ckpt.state_store.savepoints.savepoint import Kind
from tests.compat.frozen import EXPECTED, SUMS, sums, unpack
from tests.compat.frozen_savepoints import EVERY_LAYOUT, HERE, KINDS, QUERIES, VERSIONS, archive, as_json
from tests.labs.saved_query import stored


def expected(version: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((HERE / version / EXPECTED).read_text(encoding="utf-8"))[EVERY_LAYOUT]
    return content


def test_every_released_format_of_savepoints_is_here() -> None:
    assert VERSIONS == ["v1"]


@pytest.mark.parametrize("version", VERSIONS)
def test_no_savepoint_that_is_frozen_has_changed(version: str) -> None:
    """A test that fails here is never mended by a new list: what was changed is put back."""
    assert sums(HERE / version) == (HERE / version / SUMS).read_text(encoding="ascii")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_frozen_savepoint_is_restored_for_any_number_of_partitions(
    version: str, kind: Kind, quick_path: Path
) -> None:
    saved = unpack(f"savepoints/{version}", archive(EVERY_LAYOUT, kind), quick_path / "saved")
    whole = expected(version)
    if kind == "native":
        assert as_json(*stored(str(saved))) == whole
    for partitions in (1, 2, 5):
        target = quick_path / str(partitions)
        restore(str(saved), str(target), parallelism=partitions)
        assert as_json(*stored(str(target))) == {**whole, "partitions": partitions}
        assert (target / "offsets" / str(whole["version"])).exists(), "the batch that was planned"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_rows_of_a_frozen_savepoint_are_read_with_any_tool(version: str, quick_path: Path) -> None:
    saved = unpack(f"savepoints/{version}", archive(EVERY_LAYOUT, "canonical"), quick_path / "saved")
    kept = expected(version)["rows"]
    for store, wanted in (("0/right", ("rows", "counts")), ("1/default", ("default",))):
        (path,) = (saved / "rows" / store).glob("*.parquet")
        table = pq.read_table(path)
        assert table.schema.names == ["state", "hash", "key", "value"]
        found = sorted(zip(*(table.column(name).to_pylist() for name in ("key", "value")), strict=True))
        states = [kept[f"{store}/{state}"] for state in wanted]
        assert found == sorted((key.encode(), bytes.fromhex(each[key])) for each in states for key in each)


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("version", VERSIONS)
def test_both_kinds_of_a_frozen_savepoint_are_restored_alike(version: str, name: str, quick_path: Path) -> None:
    proven = []
    for kind in KINDS:
        saved = unpack(f"savepoints/{version}", archive(name, kind), quick_path / kind)
        done = restore(str(saved), f"{saved}-restored", parallelism=3)
        proven.append({(each.operator, each.store, each.name): each.digest for each in done.states})
    assert proven[0] == proven[1]
    assert sum(each.rows for each in proven[0].values()) > 0


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", [archive(name, kind) for name in (EVERY_LAYOUT, *QUERIES) for kind in KINDS])
def test_a_frozen_savepoint_is_shown_and_found_right(
    version: str, name: str, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = unpack(f"savepoints/{version}", name, quick_path / "saved")
    for command in ("list", "inspect", "verify"):
        assert main(["savepoint", command, str(saved)]) == 0
    assert "all right" in capsys.readouterr().out
