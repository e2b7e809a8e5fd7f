"""Keys in a credential file of Hadoop that change while a query runs: a task that is tried again finds them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration.crash.driver import ROOT
from integration.renewed_secrets import BATCHES
from tests.services.rotating_s3 import rotating_server
from tests.services.s3_server import hide_credentials

__all__ = ["rotating_server"]

pytestmark = pytest.mark.spark


def test_a_query_goes_on_when_its_keys_have_changed_in_a_credential_file(
    rotating_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_credentials(monkeypatch, tmp_path)
    command = [sys.executable, "-m", "integration.renewed_secrets", str(tmp_path), rotating_server]
    own = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [{"word": number} for number in range(1, BATCHES + 1)]
    assert "with changed secrets" in done.stderr
    assert "secret-user" not in done.stdout + done.stderr
