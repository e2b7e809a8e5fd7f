"""Queries continue from checkpoints and savepoints of earlier releases, and show what that release showed next."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pyspark_ckpt.savepoints import restore
from tests.compat.frozen import VERSIONS, expected, unpack
from tests.compat.frozen_savepoints import QUERIES as SAVED
from tests.compat.frozen_savepoints import archive
from tests.compat.queries import CASES, run_batch

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from pyspark_ckpt.state_store.savepoints.savepoint import Kind

QUERIES = [(version, name) for version in VERSIONS for name in expected(version)["queries"]]


@pytest.mark.parametrize(("version", "name"), QUERIES)
def test_a_query_goes_on_from_a_checkpoint_of_an_earlier_release(
    version: str, name: str, spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = unpack(version, name, tmp_path / "checkpoint")
    assert run_batch(spark, CASES[name], str(checkpoint)) == expected(version)["queries"][name]["goes on"]


@pytest.mark.parametrize(("kind", "partitions"), [("native", 2), ("native", 3), ("canonical", 3)])
@pytest.mark.parametrize("name", SAVED)
def test_a_query_goes_on_from_a_savepoint_of_an_earlier_release(
    name: str, kind: Kind, partitions: int, spark: SparkSession, tmp_path: Path
) -> None:
    saved = unpack("savepoints/v1", archive(name, kind), tmp_path / "saved")
    restore(str(saved), str(tmp_path / "checkpoint"), parallelism=partitions)
    case = replace(CASES[name], partitions=partitions)
    assert run_batch(spark, case, str(tmp_path / "checkpoint")) == expected("v1")["queries"][name]["goes on"]
