"""Fixtures of the operators' tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.labs.session_lab import STATES, SessionLab


@pytest.fixture
def lab(tmp_path: Path) -> Any:  # noqa: ANN401 - a generator
    made = SessionLab(tmp_path, STATES)
    yield made
    made.close()
