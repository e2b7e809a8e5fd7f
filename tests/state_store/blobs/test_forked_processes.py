"""Processes that are forked from one that uses a place, as by multiprocessing, use it beside their parent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["s3", "gcs", "azure"])
def test_a_forked_process_reads_what_is_stored(name: str, request: pytest.FixtureRequest) -> None:
    """It must not use the connections of its parent, and has none of its threads."""
    service = request.getfixturevalue(name)
    command = [sys.executable, "-m", "tests.labs.forked_readers", service.new_folder(), json.dumps(service.options)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
