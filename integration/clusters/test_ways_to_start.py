"""``configure()`` is all it takes, however Spark is started; state outlives the query and the process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import pyspark_ckpt
from integration.clusters.conftest import OTHER_JAR, Run
from integration.clusters.standalone import standalone_cluster


def _is_right(said: Mapping[str, Any], files: int) -> None:
    assert said["counts"] == [{"a": files, "b": 2 * files}, {"A": files, "B": 2 * files}]
    assert said["metrics"]
    assert all(name.startswith("ckpt") for name in said["metrics"])
    assert said["jars"] == sorted([OTHER_JAR, pyspark_ckpt.session.jar_path().rpartition("/")[2]])


@pytest.mark.spark
@pytest.mark.matrix
def test_counts_go_on_when_a_script_on_all_local_cores_is_run_again(run: Run) -> None:
    _is_right(run("local[*]"), files=1)
    _is_right(run("local[*]"), files=2)


@pytest.mark.in_turn
@pytest.mark.spark
def test_counts_go_on_when_queries_restart_in_a_program_of_spark_submit(run: Run) -> None:
    _is_right(run("local[2]", runs=2, with_submit=True), files=2)


@pytest.mark.in_turn
@pytest.mark.cluster
def test_counts_go_on_when_executors_are_processes_of_their_own(run: Run) -> None:
    _is_right(run("local-cluster[2,1,1024]", runs=2), files=2)


@pytest.mark.cluster
@pytest.mark.matrix
def test_counts_go_on_when_a_standalone_cluster_is_submitted_to(
    run: Run, tmp_path: Path, user_environment: Mapping[str, str]
) -> None:
    with standalone_cluster(tmp_path, user_environment) as url:
        _is_right(run(url, runs=2, with_submit=True), files=2)
