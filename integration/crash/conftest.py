"""The run without faults that everything is compared with, and drivers that end with their tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.crash import workload
from integration.crash.driver import FORMAT, LOCAL, LOCAL_CLUSTER, Relay
from integration.crash.faults import FORMATS
from integration.crash.reference import Outcome, Reference, order, read_output


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
    """Run every query once without faults, in both checkpoint formats for the first half; they must agree."""
    root = tmp_path_factory.mktemp("reference")
    made = Reference(root / "halves", {})
    driver = local.driver()
    half = [
        order(name, made.halves / f"v{version}", conf={FORMAT: str(version)}, until=workload.BATCHES // 2)
        for version in FORMATS
        for name in workload.QUERIES
    ]
    driver.run(*half)
    for name in workload.QUERIES:
        made.start_from_half(name, 2, root)
    driver.run(*(order(name, root) for name in workload.QUERIES))
    for name in workload.QUERIES:
        outcome = Outcome(read_output(root / name), driver.state(name, root / name))
        first, second = (read_output(made.halves / f"v{version}" / name) for version in FORMATS)
        assert first == second
        assert len(outcome.output) == workload.BATCHES
        assert all(outcome.state)
        made.outcomes[name] = outcome
    return made
