"""Queries on YARN are exactly once: in both modes of deployment, and whatever is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration.crash.processes import eventually
from integration.yarn import rows
from integration.yarn.cluster import EXECUTOR, MASTER, Application, Mode, Report
from pyspark_ckpt.testing.crashes.processes import kill

if TYPE_CHECKING:
    from integration.yarn.cluster import YarnCluster
    from integration.yarn.rows import Input
    from tests.services.hdfs_service import HdfsService

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

DONE = Report("SUCCEEDED", 1)
PACE_S = "2"
START_S = 600.0
"""A batch has come by then, even where the first one waits for two containers on a busy machine."""
PARTITIONS = "spark.sql.shuffle.partitions"


def await_batch(application: Application, given: Input, batch: int) -> None:
    """Return when the sink of the keyed query has a batch."""

    def look() -> bool:
        application.require_running()
        return given.has_shown("keyed", batch)

    eventually(f"batch {batch}", look, 0.5, START_S)


def require(application: Application, wanted: Report) -> None:
    """Fail unless the application ends so."""
    assert application.await_end() == wanted, application.logs()[-6000:]


@pytest.mark.parametrize("mode", [pytest.param("client", marks=pytest.mark.matrix), "cluster"])
@pytest.mark.in_turn
def test_every_batch_counts_once_when_a_program_is_submitted(mode: Mode, yarn: YarnCluster, hdfs: HdfsService) -> None:
    given = rows.make(hdfs, files=3, seed=1)
    with yarn.submit(mode, given.path) as application:
        require(application, DONE)
    given.check()


@pytest.mark.kill
@pytest.mark.matrix
@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_every_batch_counts_once_when_all_executors_are_killed(
    mode: Mode, yarn: YarnCluster, hdfs: HdfsService
) -> None:
    given = rows.make(hdfs, files=6, seed=2)
    with yarn.submit(mode, given.path, PACE_S) as application:
        for batch in (0, 2):
            await_batch(application, given, batch)
            executors = application.processes(EXECUTOR)
            assert executors
            for executor in executors:
                kill(executor)
        require(application, DONE)
    given.check()


@pytest.mark.kill
@pytest.mark.matrix
def test_every_batch_counts_once_when_yarn_ends_an_executor_that_takes_too_much_memory(
    yarn: YarnCluster, hdfs: HdfsService, tmp_path: Path
) -> None:
    given = rows.make(hdfs, files=4, seed=3)
    wish = tmp_path / "wish"
    with yarn.submit("cluster", given.path, PACE_S, "", str(wish)) as application:
        await_batch(application, given, 0)
        wish.touch()
        require(application, DONE)
        logs = application.logs()
    assert "Container killed by YARN for exceeding physical memory limits" in logs
    assert not wish.exists()
    given.check()


@pytest.mark.kill
@pytest.mark.matrix
def test_every_batch_counts_once_when_the_application_master_is_killed(yarn: YarnCluster, hdfs: HdfsService) -> None:
    given = rows.make(hdfs, files=6, seed=4)
    with yarn.submit("cluster", given.path, PACE_S, conf={"spark.yarn.maxAppAttempts": "3"}) as application:
        for attempt, batch in ((1, 0), (2, 3)):
            await_batch(application, given, batch)
            (master,) = application.processes(MASTER, attempt)
            kill(master)
        require(application, Report("SUCCEEDED", 3))
    given.check()


@pytest.mark.matrix
def test_state_that_yarn_has_written_goes_on_with_other_partitions(yarn: YarnCluster, hdfs: HdfsService) -> None:
    given = rows.make(hdfs, files=3, seed=5)
    with yarn.submit("cluster", given.path) as application:
        require(application, DONE)
    given.check()
    _command("checkpoint", "verify", f"{given.folder}/keyed/checkpoint")
    _command("savepoint", "create", f"{given.folder}/keyed/checkpoint", f"{given.folder}/saved")
    _command("savepoint", "restore", f"{given.folder}/saved", f"{given.folder}/keyed-moved/checkpoint", "-n", "5")
    _run("-c", _MOVE, f"{given.folder}/native/checkpoint", f"{given.folder}/native-moved/checkpoint")
    more = rows.make(hdfs, files=5, seed=5, folder=given.folder, first=len(given.files))
    with yarn.submit("cluster", more.path, "0", "-moved", conf={PARTITIONS: "5"}) as application:
        require(application, DONE)
    more.check("-moved", first=len(given.files))


_MOVE = """
import sys, pyspark_ckpt as ckpt
_, old, new = sys.argv
ckpt.savepoint(old, f"{old}-saved")
ckpt.restore(f"{old}-saved", new, parallelism=5)
"""


def _command(*words: str) -> None:
    _run("-m", "pyspark_ckpt", *words)


def _run(*arguments: str) -> None:
    own = {**os.environ, "HADOOP_USER_NAME": rows.USER}
    done = subprocess.run([sys.executable, *arguments], env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
