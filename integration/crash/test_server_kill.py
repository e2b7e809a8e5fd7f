"""SIGKILL of the state server at every step of a micro-batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.crash.driver import Relay
from integration.crash.faults import Scenario, armed, few, label, sample
from integration.crash.processes import eventually
from integration.crash.reference import Reference, order

IN_CLUSTER = [
    ("commit.after_ingest", "groups", 2),
    ("restore.after_download", "dedup", 2),
]


def _survives(relay: Relay, reference: Reference, scenario: Scenario, folder: Path) -> None:
    point, name, version = scenario
    reference.start_from_half(name, version, folder)
    driver = relay.driver()
    driver.lose_local_state()
    hold = {"batch": 4, "file": driver.fired_pattern(point)}
    driver.run(order(name, folder, conf=armed(point, "kill", version), hold=hold))
    reference.check(driver, name, folder)


@pytest.mark.spark
@pytest.mark.kill
@pytest.mark.parametrize("scenario", sample(), ids=label)
def test_state_and_output_are_right_when_the_state_server_is_killed(
    scenario: Scenario, local: Relay, reference: Reference, tmp_path: Path
) -> None:
    _survives(local, reference, scenario, tmp_path)


@pytest.mark.cluster
@pytest.mark.kill
@pytest.mark.parametrize("scenario", few(IN_CLUSTER), ids=label)
def test_state_and_output_are_right_when_a_state_server_of_a_cluster_is_killed(
    scenario: Scenario, cluster: Relay, reference: Reference, tmp_path: Path
) -> None:
    _survives(cluster, reference, scenario, tmp_path)


@pytest.mark.spark
@pytest.mark.kill
def test_state_and_output_are_right_when_idle_state_servers_are_killed_between_batches(
    local: Relay, reference: Reference, tmp_path: Path
) -> None:
    reference.start_from_half("join", 2, tmp_path)
    driver = local.driver()
    go = tmp_path / "go"
    driver.send("run", runs=[order("join", tmp_path, hold={"batch": 3, "file": str(go)})])
    eventually("the output of batch 3", (tmp_path / "join" / "output" / "3.json").exists)
    driver.kill_state_servers()
    go.touch()
    driver.receive()
    reference.check(driver, "join", tmp_path)
