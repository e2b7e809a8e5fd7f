"""The checkpoints of Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adoption.written import unpack_all


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all checkpoints."""
    return unpack_all(tmp_path_factory.mktemp("spark"))
