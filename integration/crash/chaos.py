"""Random kills at random times, which one seed decides: servers, Python workers, executors and the driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import psutil

from integration.crash.driver import LOCAL_CLUSTER, Driver, DriverDiedError, OrderFailedError
from pyspark_ckpt.testing.crashes.processes import kill

KILLS = 6
LOCAL = "local[4,8]"

Victims = Callable[[Driver], list[psutil.Process]]
VICTIMS: Mapping[str, Victims] = {
    "server": Driver.state_servers,
    "worker": Driver.python_workers,
    "executor": Driver.executors,
    "driver": lambda driver: [driver.jvm()],
}


class Chaos:
    """Kills that one seed decides: what and when, as far as the machine's timing lets it."""

    def __init__(self, seed: int, *, on_cluster: bool, other_faults: Callable[[], int] = lambda: 0) -> None:
        """``other_faults`` counts what else happens to the queries, and may end them."""
        self._random = Random(seed)
        self._other_faults = other_faults
        kinds = ["server", "server", "worker", "executor" if on_cluster else "server", "worker", "driver"]
        self._random.shuffle(kinds)
        self._left = kinds[:KILLS]
        self.done: list[str] = []

    def faults(self) -> int:
        """How many there have been."""
        return len(self.done) + self._other_faults()

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


def run_through(
    chaos: Chaos,
    orders: Sequence[Mapping[str, Any]],
    folder: Path,
    *,
    on_cluster: bool,
    check: Callable[[Driver], None],
    conf: Mapping[str, str] | None = None,
) -> None:
    """Run all queries to their end, however many drivers that takes, then let ``check`` look at them.

    Raises AssertionError if a query fails without a fault.
    """
    finished = False
    while not finished:
        with Driver(folder, LOCAL_CLUSTER if on_cluster else LOCAL, conf) as driver:
            finished = _run(driver, orders, chaos)
            if finished:
                check(driver)


def _run(driver: Driver, orders: Sequence[Mapping[str, Any]], chaos: Chaos) -> bool:
    """One life of the driver; False if it did not bring all queries to their end."""
    driver.send("run", runs=[dict(each) for each in orders])
    faults = chaos.faults()
    chaos.until_answered(driver)
    try:
        driver.receive()
    except DriverDiedError:
        return False
    except OrderFailedError as failure:
        # A task may be hit more often than Spark tries it: the user starts the query again.
        if chaos.faults() == faults:
            raise AssertionError("a query failed, and there was no fault") from failure
        return False
    return True
