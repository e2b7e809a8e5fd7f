"""A query that stays in another provider, although the session has ours, is named in one warning."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.in_turn
def test_a_query_that_stays_with_its_provider_is_named_once_with_the_command_that_moves_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "integration.adoption.unmoved", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    _, not_moved, new, chosen = done.stderr.split("=== ")[-4:]
    (warning,) = [line for line in not_moved.splitlines() if "although the session has pyspark-ckpt" in line]
    assert "RocksDBStateStoreProvider" in warning
    assert f"pyspark-ckpt checkpoint adopt 'file:{tmp_path}/old' NEW_CHECKPOINT" in warning
    assert "although the session has pyspark-ckpt" not in new + chosen
