"""The checkpoints that Spark has written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.offline.adopting.written import unpack_all


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all checkpoints of Spark 4.3."""
    return unpack_all("4.3", tmp_path_factory.mktemp("spark"))


@pytest.fixture(scope="module")
def older_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all checkpoints of Spark 3.5, by provider and operator."""
    return unpack_all("3.5", tmp_path_factory.mktemp("spark-3.5"))
