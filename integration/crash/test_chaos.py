"""Random kills at random times: servers, Python workers, executors and the driver, all queries at once.

``CKPT_CHAOS_SEEDS`` is a number of seeds, or a list such as ``7,12``. A failing seed is in the name of its test.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import psutil
import pytest

from integration.crash.driver import FORMAT, LOCAL_CLUSTER, Driver, DriverDiedError, OrderFailedError
from integration.crash.processes import kill
from integration.crash.reference import Reference, order
from integration.crash.workload import QUERIES

KILLS = 6
CLUSTER_EVERY = 3  # so many seeds share one that runs on executors of their own
SEEDS = [3]

Victims = Callable[[Driver], list[psutil.Process]]
VICTIMS: Mapping[str, Victims] = {
    "server": Driver.state_servers,
    "worker": Driver.python_workers,
    "executor": Driver.executors,
    "driver": lambda driver: [driver.jvm()],
}


def seeds() -> list[int]:
    """The seeds to run."""
    given = os.environ.get("CKPT_CHAOS_SEEDS")
    if given is None:
        return SEEDS
    return [int(seed) for seed in given.split(",")] if "," in given else list(range(1, int(given) + 1))


class Chaos:
    """Kills that one seed decides: what and when, as far as the machine's timing lets it."""

    def __init__(self, seed: int, *, on_cluster: bool) -> None:
        self._random = Random(seed)
        kinds = ["server", "server", "worker", "executor" if on_cluster else "server", "worker", "driver"]
        self._random.shuffle(kinds)
        self._left = kinds[:KILLS]
        self.done: list[str] = []

    def until_answered(self, driver: Driver) -> None:
        """Kill one after another until the driver has answered or is dead."""
        while self._left and not driver.has_answered(self._random.uniform(0.1, 2.5)):
            if not driver.state_servers():
                continue  # nothing has begun
            kind = self._left.pop()
            victims = VICTIMS[kind](driver)
            if not victims:
                self._left.insert(0, kind)
                continue
            kill(self._random.choice(victims))
            self.done.append(f"{kind} at {time.monotonic():.1f}")
            if kind == "driver":
                return


@pytest.mark.spark
@pytest.mark.kill
@pytest.mark.parametrize("seed", seeds())
def test_state_and_output_are_right_when_anything_is_killed_at_random(
    seed: int, reference: Reference, tmp_path: Path
) -> None:
    on_cluster = seed % CLUSTER_EVERY == 0
    chaos = Chaos(seed, on_cluster=on_cluster)
    version = 1 + seed % 2
    orders = [order(name, tmp_path, conf={FORMAT: str(version)}) for name in QUERIES]
    finished = False
    while not finished:
        with Driver(tmp_path, LOCAL_CLUSTER if on_cluster else "local[4,8]") as driver:
            finished = _run(driver, orders, chaos)
            if finished:
                for name in QUERIES:
                    reference.check(driver, name, tmp_path)
    assert chaos.done
    print(f"seed {seed}: {chaos.done}")


def _run(driver: Driver, orders: list[dict[str, object]], chaos: Chaos) -> bool:
    """One life of the driver; False if it did not bring all queries to their end."""
    driver.send("run", runs=orders)
    kills = len(chaos.done)
    chaos.until_answered(driver)
    try:
        driver.receive()
    except DriverDiedError:
        return False
    except OrderFailedError as failure:
        # A task may be hit more often than Spark tries it: the user starts the query again.
        if len(chaos.done) == kills:
            raise AssertionError("a query failed, and nobody had killed anything") from failure
        return False
    return True
