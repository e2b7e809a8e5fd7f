"""SIGKILL of the driver while a savepoint is taken, while it is restored, and in the first batch after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.conftest import SHUFFLE_PARTITIONS
from integration.crash import processes
from integration.crash.driver import LOCAL, Driver, Relay
from integration.crash.faults import armed
from integration.crash.reference import order, read_output
from integration.sample import sampled
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.savepoints.deletion import delete
from pyspark_ckpt.state_store.savepoints.restoring.target_records import RESULT_NAME
from pyspark_ckpt.state_store.savepoints.savepoint import NAME, Savepoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.kill]

NAMES = ("keyed", "windows", "join", "dedup", "groups")
"""A keyed operator, an aggregation, a join, deduplication and functions on groups: see integration/crash."""
LEFT_OUT = {*NAMES}
"""All of them: see integration/kafka, and tests/state_store/savepoints, where kills come at every write."""
HALF = 3
PARTITIONS = 4
LONG_MS = 900_000


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Relay]:
    relay = Relay(tmp_path / "drivers", LOCAL)
    yield relay
    relay.close()


def kill_when(driver: Driver, what: str, folder: Path, pattern: str) -> None:
    """Kill the driver, which does something, as soon as there is such a file."""
    processes.eventually(what, lambda: list(folder.glob(pattern)))
    driver.kill_driver()
    driver.await_end()


@pytest.mark.parametrize("name", sampled(NAMES, LEFT_OUT))
def test_output_is_right_whenever_the_driver_is_killed(name: str, drivers: Relay, tmp_path: Path) -> None:
    checkpoint, taken, restored = (tmp_path / each for each in (f"{name}/checkpoint", "taken", "restored"))
    moved = {SHUFFLE_PARTITIONS: str(PARTITIONS)}
    savepoint = {"checkpoint": str(checkpoint), "target": str(taken)}
    restore = {"saved": str(taken), "target": str(restored), "parallelism": PARTITIONS}

    driver = drivers.driver()
    driver.run(order(name, tmp_path / "expected"))
    driver.run(order(name, tmp_path, until=HALF))
    driver.send("savepoint", **savepoint, stuck_at=NAME)
    kill_when(driver, "a savepoint that is begun", taken, "savepoint.unfinished")
    with pytest.raises(InvalidInputError, match="is not a savepoint"):
        Savepoint(str(taken), parse({}))
    delete(str(taken), parse({}))

    driver = drivers.driver()
    driver.send("savepoint", **savepoint)
    assert driver.receive() == HALF
    driver.send("restore", **restore, stuck_at=RESULT_NAME)
    kill_when(driver, "a restore that is begun", restored, "_ckpt/restore/done/*.json")
    with pytest.raises(InvalidInputError, match="is not a checkpoint"):
        Checkpoint(str(restored), parse({}))

    driver = drivers.driver()
    driver.send("restore", **restore)
    assert driver.receive() == HALF
    held = {**moved, **armed("commit.after_upload", f"sleep={LONG_MS}", 2)}
    driver.send("run", runs=[order(name, tmp_path, checkpoint=str(restored), conf=held)])
    driver.await_fired("commit.after_upload")
    driver.kill_driver()
    driver.await_end()

    driver = drivers.driver()
    driver.run(order(name, tmp_path, checkpoint=str(restored), conf=moved))
    assert read_output(tmp_path / name) == read_output(tmp_path / "expected" / name)
