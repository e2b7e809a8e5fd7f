"""SIGKILL of the state server at every step of a micro-batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.crash.driver import Relay
from integration.crash.faults import FORMATS, NEWEST, SOAK, Scenario, all_armed, few, label, sample
from integration.crash.processes import eventually
from integration.crash.reference import Reference, order
from integration.crash.workload import QUERIES
from pyspark_ckpt.state_store.failpoints import NAMES

IN_CLUSTER = [
    ("commit.after_ingest", "groups", NEWEST),
    ("restore.after_download", "dedup", NEWEST),
]


# Two kills a run: the second server dies as well. A batch waits for the second one of each.
STEPS = (
    ("begin.before", "snapshot.before_manifest"),
    ("begin.after_ticket", "snapshot.after_manifest"),
    ("commit.before_upload", "cleanup.before_delete"),
    ("restore.before_download", "commit.after_upload"),
    ("restore.after_download", "commit.before_answer"),
    ("commit.before_ingest", "commit.after_ingest"),
)
SAMPLE = [(steps, QUERIES[n % len(QUERIES)], FORMATS[n % len(FORMATS)]) for n, steps in enumerate(STEPS)]
ALL = [((point,), name, version) for point, name, version in sample()]


def _survives(
    relay: Relay, reference: Reference, steps: tuple[str, ...], name: str, version: int, folder: Path
) -> None:
    reference.start_from_half(name, version, folder)
    driver = relay.driver()
    driver.lose_local_state()
    hold = {"batch": 4, "file": driver.fired_pattern(steps[-1])}
    driver.run(order(name, folder, conf=all_armed(steps, "kill", version), hold=hold))
    fired = [mark.name for mark in driver.fired()]
    assert all(any(mark.startswith(f"{step}-") for mark in fired) for step in steps)
    reference.check(driver, name, folder)


def test_every_step_is_among_those_at_which_the_state_server_is_killed() -> None:
    assert {step for steps in STEPS for step in steps} == NAMES


@pytest.mark.in_turn
@pytest.mark.spark
@pytest.mark.kill
@pytest.mark.parametrize(("steps", "name", "version"), ALL if SOAK else SAMPLE, ids=str)
def test_state_and_output_are_right_when_the_state_server_is_killed(
    steps: tuple[str, ...], name: str, version: int, local: Relay, reference: Reference, tmp_path: Path
) -> None:
    _survives(local, reference, steps, name, version, tmp_path)


@pytest.mark.cluster
@pytest.mark.kill
@pytest.mark.parametrize("scenario", few(IN_CLUSTER), ids=label)
def test_state_and_output_are_right_when_a_state_server_of_a_cluster_is_killed(
    scenario: Scenario, cluster: Relay, reference: Reference, tmp_path: Path
) -> None:
    point, name, version = scenario
    _survives(cluster, reference, (point,), name, version, tmp_path)


@pytest.mark.spark
@pytest.mark.kill
def test_state_and_output_are_right_when_idle_state_servers_are_killed_between_batches(
    local: Relay, reference: Reference, tmp_path: Path
) -> None:
    reference.start_from_half("join", NEWEST, tmp_path)
    driver = local.driver()
    go = tmp_path / "go"
    driver.send("run", runs=[order("join", tmp_path, hold={"batch": 3, "file": str(go)})])
    eventually("the output of batch 3", (tmp_path / "join" / "output" / "3.json").exists)
    driver.kill_state_servers()
    go.touch()
    driver.receive()
    reference.check(driver, "join", tmp_path)
