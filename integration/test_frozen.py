"""Queries go on from checkpoints and savepoints of earlier releases and older Sparks, and show what is right."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from integration.short import has
from pyspark_ckpt.savepoints import restore, savepoint
from tests.compat import frozen_processors as processors
from tests.compat.frozen import SPARK, VERSIONS, expected, goes_on, unpack
from tests.compat.frozen_savepoints import KINDS, archive
from tests.compat.frozen_savepoints import QUERIES as SAVED
from tests.compat.queries import CASES, PROCESSOR, run_batch

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from pyspark_ckpt.state_store.savepoints.savepoint import Kind
    from tests.compat.queries import Case

KNOWN = [version for version in VERSIONS if has(expected(version)["made by"]["pyspark"])]
"""What this Spark or an older one has written."""
QUERIES = [(version, name) for version in KNOWN for name in expected(version)["queries"]]
OLDER = [(version, name) for version in KNOWN if version.startswith(SPARK) for name in SAVED]


@pytest.mark.parametrize(("version", "name"), QUERIES)
def test_a_query_goes_on_from_a_checkpoint_of_an_earlier_release(
    version: str, name: str, spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = unpack(version, name, tmp_path / "checkpoint")
    case = in_its_format(CASES[name], version)
    assert run_batch(spark, case, str(checkpoint)) == goes_on(version, name)


def in_its_format(case: Case, version: str) -> Case:
    """The case in the checkpoint format that its checkpoint has, where Spark cannot change it."""
    is_format_1 = version in ("spark-3.5", "spark-4.0") and not has("4.2")
    return replace(case, checkpoint_format=1) if is_format_1 else case


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("version", "name"), OLDER)
def test_a_savepoint_of_a_checkpoint_of_an_older_spark_goes_on_with_another_parallelism(
    version: str, name: str, kind: Kind, spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = unpack(version, name, tmp_path / "old")
    savepoint(str(checkpoint), str(tmp_path / "saved"), kind=kind)
    restore(str(tmp_path / "saved"), str(tmp_path / "checkpoint"), parallelism=3)
    case = replace(in_its_format(CASES[name], version), partitions=3)
    assert run_batch(spark, case, str(tmp_path / "checkpoint")) == goes_on(version, name)


@pytest.mark.parametrize(("kind", "partitions"), [("native", 2), ("native", 3), ("canonical", 3)])
@pytest.mark.parametrize("name", SAVED)
def test_a_query_goes_on_from_a_savepoint_of_an_earlier_release(
    name: str, kind: Kind, partitions: int, spark: SparkSession, tmp_path: Path
) -> None:
    saved = unpack("savepoints/v1", archive(name, kind), tmp_path / "saved")
    restore(str(saved), str(tmp_path / "checkpoint"), parallelism=partitions)
    case = replace(CASES[name], partitions=partitions)
    assert run_batch(spark, case, str(tmp_path / "checkpoint")) == goes_on("v1", name)


@pytest.mark.parametrize("partitions", [2, 3])
@pytest.mark.parametrize("version", [version for version in processors.VERSIONS if has(version.removeprefix(SPARK))])
def test_a_processor_goes_on_from_a_savepoint_of_an_older_spark(
    version: str, partitions: int, spark: SparkSession, tmp_path: Path
) -> None:
    saved = unpack(f"{processors.PROCESSORS}/{version}", processors.SAVED, tmp_path / "saved")
    restore(str(saved), str(tmp_path / "checkpoint"), parallelism=partitions)
    case = replace(in_its_format(PROCESSOR, version), partitions=partitions)
    assert run_batch(spark, case, str(tmp_path / "checkpoint")) == processors.expected(version)
