"""Speculation on a cluster of two hosts: two attempts of a task live at once, and the slower one is a zombie."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.clusters.standalone import standalone_cluster
from integration.crash.driver import FORMAT, Driver, environment
from integration.crash.faults import FAIL_POINTS
from integration.crash.processes import eventually
from integration.crash.reference import Reference, order
from pyspark_ckpt.testing.crashes.processes import kill, kill_marked

pytestmark = [pytest.mark.cluster, pytest.mark.kill]

SPECULATION = {
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}
SLOWER_ATTEMPT = (
    "TaskKilled (Stage cancelled: Stage finished)",
    "TaskKilled (Stage finished)",
    "TaskKilled (another attempt succeeded)",
)
"""What Spark says of one, Spark 3.5 the second; the last where other tasks of the stage still run."""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A driver on two workers. Spark never runs a second attempt on the first one's host: this one has two names."""
    folder, mark = tmp_path_factory.mktemp("speculation"), uuid.uuid4().hex
    (folder / "temporary").mkdir()
    try:
        with (
            standalone_cluster(folder, environment(folder, mark), ("127.0.0.1", "localhost")) as url,
            Driver(folder, url, SPECULATION, mark) as started,
        ):
            yield started
    finally:
        kill_marked(mark)


def slower_attempts(driver: Driver) -> int:
    """How many there have been."""
    log = driver.log()
    return sum(map(log.count, SLOWER_ATTEMPT))


@pytest.mark.in_turn
@pytest.mark.parametrize("version", [1, pytest.param(2, marks=pytest.mark.matrix)])
def test_state_and_output_are_right_when_the_slower_attempt_commits_late(
    version: int, driver: Driver, reference: Reference, tmp_path: Path
) -> None:
    before = slower_attempts(driver)
    driver.lose_local_state()
    conf = {FORMAT: str(version), FAIL_POINTS: "commit.before_upload:sleep=4000@3"}
    hold = {"batch": 1, "file": str(tmp_path / "go")}
    driver.send("run", runs=[order("windows", tmp_path, conf=conf, hold=hold)])
    eventually("the output of batch 1", (tmp_path / "windows" / "output" / "1.json").exists)
    kill(driver.state_servers()[0])  # its successor counts anew: the two are never slow in the same batch
    (tmp_path / "go").touch()
    driver.receive()
    assert driver.fired()
    eventually("the end of the slower attempt", lambda: slower_attempts(driver) > before)
    reference.check(driver, "windows", tmp_path)


@pytest.mark.in_turn
def test_state_and_output_are_right_when_the_slower_attempt_never_ends(
    driver: Driver, reference: Reference, tmp_path: Path
) -> None:
    before = slower_attempts(driver)
    driver.lose_local_state()
    driver.run(order("groups", tmp_path, fault={"kind": "sleep", "marker": str(tmp_path / "asleep")}))
    eventually("the end of the slower attempt", lambda: slower_attempts(driver) > before)
    reference.check(driver, "groups", tmp_path)
