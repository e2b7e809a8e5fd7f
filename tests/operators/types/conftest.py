"""Fixtures of the tests of types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.labs.program_lab import ProgramLab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[ProgramLab]:
    """A store for programs that follow each other."""
    made = ProgramLab(tmp_path)
    yield made
    made.close()
