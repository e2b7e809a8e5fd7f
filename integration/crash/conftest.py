"""The run without faults that everything is compared with, and drivers that end with their tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from integration.crash import workload
from integration.crash.driver import LOCAL, LOCAL_CLUSTER, Relay
from integration.crash.reference import Outcome, Reference, read_output


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    """Drivers on ``local[4,4]``: tasks are tried again."""
    relay = Relay(tmp_path_factory.mktemp("local"), LOCAL)
    yield relay
    relay.close()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    """Drivers with two executors in processes of their own."""
    relay = Relay(tmp_path_factory.mktemp("cluster"), LOCAL_CLUSTER)
    yield relay
    relay.close()


@pytest.fixture(scope="session")
def reference(local: Relay, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Run every query once without faults, restarted in the middle."""
    root = tmp_path_factory.mktemp("reference")
    made = Reference(root / "inputs", root / "halves", {})
    driver = local.driver()
    workload.write_inputs(made.inputs, 0, workload.BATCHES // 2)
    driver.run(*(made.run(name, made.halves) for name in workload.QUERIES))
    shutil.copytree(made.halves, root / "whole")
    workload.write_inputs(made.inputs, workload.BATCHES // 2, workload.BATCHES)
    driver.run(*(made.run(name, root / "whole") for name in workload.QUERIES))
    for name in workload.QUERIES:
        outcome = Outcome(read_output(root / "whole" / name), driver.state(name, root / "whole" / name))
        assert len(outcome.output) == workload.BATCHES
        assert all(outcome.state)
        made.outcomes[name] = outcome
    return made
