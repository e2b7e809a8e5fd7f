"""Random kills at random times: servers, Python workers, executors and the driver, all queries at once.

``CKPT_CHAOS_SEEDS`` is a number of seeds, or a list such as ``7,12``. A failing seed is in the name of its test.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from integration.crash.chaos import Chaos, run_through
from integration.crash.driver import FORMAT, Driver
from integration.crash.reference import Reference, order
from integration.crash.workload import QUERIES

CLUSTER_EVERY = 3  # so many seeds share one that runs on executors of their own
SEEDS = [3]


def seeds() -> list[int]:
    """The seeds to run."""
    given = os.environ.get("CKPT_CHAOS_SEEDS")
    if given is None:
        return SEEDS
    return [int(seed) for seed in given.split(",")] if "," in given else list(range(1, int(given) + 1))


@pytest.mark.spark
@pytest.mark.kill
@pytest.mark.matrix
@pytest.mark.parametrize("seed", seeds())
def test_state_and_output_are_right_when_anything_is_killed_at_random(
    seed: int, reference: Reference, tmp_path: Path
) -> None:
    on_cluster = seed % CLUSTER_EVERY == 0
    chaos = Chaos(seed, on_cluster=on_cluster)
    orders = [order(name, tmp_path, conf={FORMAT: str(1 + seed % 2)}) for name in QUERIES]

    def check(driver: Driver) -> None:
        for name in QUERIES:
            reference.check(driver, name, tmp_path)

    run_through(chaos, orders, tmp_path, on_cluster=on_cluster, check=check)
    assert chaos.done
    print(f"seed {seed}: {chaos.done}")
