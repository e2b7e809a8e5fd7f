"""SIGKILL of an executor's JVM: at the steps of a micro-batch, and while it only holds state."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from integration.crash.driver import Driver, Relay
from integration.crash.faults import NEWEST, Scenario, armed, few, label
from integration.crash.processes import eventually
from integration.crash.reference import Reference, order
from pyspark_ckpt.testing.crashes.processes import kill

AT_STEPS = [
    ("begin.before", "join", NEWEST),
    ("commit.before_answer", "windows", 1),
]
SHORT_MS = 2_000  # every other executor passes the step, too, and goes on after this time

pytestmark = [pytest.mark.cluster, pytest.mark.kill]


@pytest.mark.in_turn
@pytest.mark.parametrize("scenario", few(AT_STEPS), ids=label)
def test_state_and_output_are_right_when_an_executor_is_killed(
    scenario: Scenario, cluster: Relay, reference: Reference, tmp_path: Path
) -> None:
    point, name, version = scenario
    reference.start_from_half(name, version, tmp_path)
    driver = cluster.driver()
    driver.lose_local_state()
    hold = {"batch": 4, "file": driver.fired_pattern(point)}
    conf = armed(point, f"sleep={SHORT_MS}", version)
    driver.send("run", runs=[order(name, tmp_path, conf=conf, hold=hold)])
    executor_id = driver.await_fired(point).parents[2].name.split("-")[1]
    _kill_with_server(driver, driver.executor(executor_id))
    driver.receive()
    reference.check(driver, name, tmp_path)


@pytest.mark.in_turn
def test_state_and_output_are_right_when_all_executors_are_killed_between_batches(
    cluster: Relay, reference: Reference, tmp_path: Path
) -> None:
    reference.start_from_half("join", NEWEST, tmp_path)
    driver = cluster.driver()
    go = tmp_path / "go"
    driver.send("run", runs=[order("join", tmp_path, hold={"batch": 3, "file": str(go)})])
    eventually("the output of batch 3", (tmp_path / "join" / "output" / "3.json").exists)
    for executor in driver.executors():
        _kill_with_server(driver, executor)
    go.touch()
    driver.receive()
    reference.check(driver, "join", tmp_path)


def _kill_with_server(driver: Driver, executor: psutil.Process) -> None:
    """Kill an executor; its state server must end by itself."""
    servers = [server for server in driver.state_servers() if server.ppid() == executor.pid]
    assert len(servers) <= 1
    kill(executor)
    eventually("the end of the state server", lambda: not any(_runs(server) for server in servers))


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
