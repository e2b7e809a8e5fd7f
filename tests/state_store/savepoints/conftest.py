"""Fixtures of the tests of savepoints."""

from __future__ import annotations

import pytest

from pyspark_ckpt import savepoints
from pyspark_ckpt.state_store.redistribution.jobs import RunHere


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls do all their work in this process, where a test can change their steps."""
    monkeypatch.setattr(savepoints, "LocalProcesses", RunHere)
