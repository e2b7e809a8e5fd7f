"""Queries go on from the checkpoints of earlier releases, and show what the release itself showed next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.compat.frozen import VERSIONS, expected, unpack
from tests.compat.queries import CASES, run_batch

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

QUERIES = [(version, name) for version in VERSIONS for name in expected(version)["queries"]]


@pytest.mark.parametrize(("version", "name"), QUERIES)
def test_a_query_goes_on_from_a_checkpoint_of_an_earlier_release(
    version: str, name: str, spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = unpack(version, name, tmp_path / "checkpoint")
    assert run_batch(spark, CASES[name], str(checkpoint)) == expected(version)["queries"][name]["goes on"]
