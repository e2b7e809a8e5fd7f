"""The run without faults that everything is compared with, and drivers that end with their tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.crash.driver import LOCAL, LOCAL_CLUSTER, Relay
from integration.crash.reference import Reference, made


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
    """The run without faults, once for all tests."""
    return made(local.driver(), tmp_path_factory.mktemp("reference"))
