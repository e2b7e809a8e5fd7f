"""Savepoints of earlier releases are restored as they were taken, for any number of partitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.cli import main
from pyspark_ckpt.savepoints import restore
from tests.compat.frozen import EXPECTED, SUMS, sums, unpack
from tests.compat.frozen_savepoints import EVERY_LAYOUT, HERE, QUERIES, VERSIONS, as_json
from tests.saved_query import stored


def expected(version: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((HERE / version / EXPECTED).read_text(encoding="utf-8"))[EVERY_LAYOUT]
    return content


def test_every_released_format_of_savepoints_is_here() -> None:
    assert VERSIONS == ["v1"]


@pytest.mark.parametrize("version", VERSIONS)
def test_no_savepoint_that_is_frozen_has_changed(version: str) -> None:
    """A test that fails here is never mended by a new list: what was changed is put back."""
    assert sums(HERE / version) == (HERE / version / SUMS).read_text(encoding="ascii")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_frozen_savepoint_is_restored_for_any_number_of_partitions(version: str, quick_path: Path) -> None:
    saved = unpack(f"savepoints/{version}", EVERY_LAYOUT, quick_path / "saved")
    whole = expected(version)
    assert as_json(*stored(str(saved))) == whole
    for partitions in (1, 2, 5):
        target = quick_path / str(partitions)
        restore(str(saved), str(target), parallelism=partitions)
        assert as_json(*stored(str(target))) == {**whole, "partitions": partitions}
        assert (target / "offsets" / str(whole["version"])).exists(), "the batch that was planned"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", [EVERY_LAYOUT, *QUERIES])
def test_a_frozen_savepoint_is_shown_and_found_right(
    version: str, name: str, quick_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = unpack(f"savepoints/{version}", name, quick_path / "saved")
    for command in ("list", "inspect", "verify"):
        assert main(["savepoint", command, str(saved)]) == 0
    assert "all right" in capsys.readouterr().out
