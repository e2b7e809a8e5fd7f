"""With ``durability=batch``, a batch is committed only when all its state is durable, whatever dies before."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.crash.driver import OPTIONS, Driver, OrderFailedError, Relay
from integration.crash.faults import NEWEST, armed
from integration.crash.processes import eventually
from integration.crash.reference import Reference, order
from pyspark_ckpt.pyspark_releases import has_commit_ids_for_all
from pyspark_ckpt.testing.crashes.processes import kill

pytestmark = [
    pytest.mark.kill,
    pytest.mark.in_turn,
    pytest.mark.skipif(not has_commit_ids_for_all(), reason="This Spark has no checkpoint format 2 for all operators."),
]
BY_BATCH = {f"{OPTIONS}durability": "batch"}
HALF = 3
"""The first batch that is not committed."""


def _require_uncommitted(folder: Path) -> None:
    assert not (folder / "checkpoint" / "commits" / str(HALF)).exists()


def _goes_on(driver: Driver, reference: Reference, name: str, folder: Path) -> None:
    driver.run(order(name, folder, conf=BY_BATCH))
    reference.check(driver, name, folder)
    assert list((folder / name / "checkpoint" / "_ckpt" / "packs").glob("*.pack"))


@pytest.mark.spark
@pytest.mark.parametrize("name", ["windows", "join", "keyed"])
def test_a_batch_whose_pack_dies_with_the_state_server_is_repeated_by_the_next_run(
    name: str, local: Relay, reference: Reference, tmp_path: Path
) -> None:
    reference.start_from_half(name, NEWEST, tmp_path)
    driver = local.driver()
    driver.lose_local_state()
    conf = {**armed("pack.before_write", "kill", NEWEST), **BY_BATCH}
    with pytest.raises(OrderFailedError, match=r"The batch is not committed: pack [0-9a-f]{16}.* could not be written"):
        driver.run(order(name, tmp_path, conf=conf))
    _require_uncommitted(tmp_path / name)
    _goes_on(driver, reference, name, tmp_path)


@pytest.mark.cluster
def test_a_batch_whose_pack_dies_with_an_executor_is_repeated_by_the_next_run(
    cluster: Relay, reference: Reference, tmp_path: Path
) -> None:
    name = "windows"
    reference.start_from_half(name, NEWEST, tmp_path)
    driver = cluster.driver()
    driver.lose_local_state()
    point = "pack.before_write"
    conf = {**armed(point, "sleep=60000", NEWEST), **BY_BATCH}
    driver.send("run", runs=[order(name, tmp_path, conf=conf)])
    executor_id = driver.await_fired(point).parents[2].name.split("-")[1]
    eventually("the output of the batch", (tmp_path / name / "output" / f"{HALF}.json").exists)
    kill(driver.executor(executor_id))
    with pytest.raises(OrderFailedError, match=rf"was not durable when executor {executor_id} was lost"):
        driver.receive()
    _require_uncommitted(tmp_path / name)
    _goes_on(driver, reference, name, tmp_path)
