"""``pyspark-ckpt checkpoint adopt --explain`` tells what would be done, and does nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_ckpt.cli.main import main


def test_rows_are_counted_and_nothing_is_written(
    checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "never")
    assert main(["checkpoint", "adopt", "--dry-run", str(checkpoints / "hdfs"), target, "-n", "5"]) == 0
    said = capsys.readouterr().out
    assert "rows are converted, split and joined" in said
    assert "rows with indexes of each new partition of operator 0, counted" in said
    assert main(["checkpoint", "adopt", "--dry-run", "--json", str(checkpoints / "join-4"), target, "-n", "5"]) == 0
    (operator,) = json.loads(capsys.readouterr().out)["operators"]
    assert operator["rows"] == sum(operator["expected_rows"]) == 42
    assert operator["is_counted"]
    assert not (tmp_path / "never").exists()


def test_rows_that_are_not_read_are_not_known(
    checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    explain = ["checkpoint", "adopt", "--dry-run", "--quick", str(checkpoints / "hdfs"), str(tmp_path / "never")]
    assert main(explain) == 0
    assert "rows and time are unknown" in capsys.readouterr().out
    assert main([*explain, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["seconds"], told["operators"][0]["rows"], told["operators"][0]["expected_rows"]) == (None, None, [])
    assert not (tmp_path / "never").exists()
