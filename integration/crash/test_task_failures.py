"""Tasks that fail and are tried again: a killed Python worker, user code that raises before and after the commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.crash.driver import FORMAT, Driver, OrderFailedError, Relay
from integration.crash.reference import Reference, order, read_output

pytestmark = [pytest.mark.spark, pytest.mark.kill]

FAULTS = [
    ("kill_worker", "groups", 1),
    ("kill_worker", "join", 2),
    ("raise_midway", "groups", 2),
    ("kill_worker", "keyed", 1),
    ("raise_midway", "keyed", 2),
    ("raise_midway", "dedup", 2),
    ("raise_at_end", "windows", 2),
    ("raise_at_end", "join", 1),
    ("raise_at_end", "dedup", 2),
]


@pytest.mark.parametrize(("kind", "name", "version"), FAULTS)
def test_state_and_output_are_right_when_a_task_fails_once(
    kind: str, name: str, version: int, local: Relay, reference: Reference, tmp_path: Path
) -> None:
    marker = tmp_path / "struck"
    driver = local.driver()
    fault = {"kind": kind, "marker": str(marker)}
    driver.run(order(name, tmp_path, conf={FORMAT: str(version)}, fault=fault))
    assert marker.exists()
    reference.check(driver, name, tmp_path)


@pytest.mark.parametrize(("name", "version"), [("windows", 1), ("groups", 2), ("keyed", 1), ("keyed", 2)])
def test_state_is_that_of_the_fixed_program_when_an_uncommitted_batch_runs_again(
    name: str, version: int, local: Relay, reference: Reference, tmp_path: Path
) -> None:
    driver = local.driver()
    conf = {FORMAT: str(version)}
    quiet, broken = tmp_path / "quiet", tmp_path / "broken"

    reference.start_from_half(name, version, quiet)
    driver.run(order(name, quiet, conf=conf, weight=10))
    reference.start_from_half(name, version, broken)
    with pytest.raises(OrderFailedError, match="made-up failure of the sink"):
        driver.run(order(name, broken, conf=conf, fail_at=3))
    driver.run(order(name, broken, conf=conf, weight=10, program_may_change=True))

    assert _what_is_left(broken, name, driver) == _what_is_left(quiet, name, driver)
    assert driver.state(name, broken / name) != reference.outcomes[name].state
    assert driver.lock_trouble() == []


def test_state_and_output_are_right_when_restarted_with_another_number_of_partitions_in_the_conf(
    local: Relay, reference: Reference, tmp_path: Path
) -> None:
    driver = local.driver()
    for name in ("windows", "join"):
        reference.start_from_half(name, 2, tmp_path)
    conf = {"spark.sql.shuffle.partitions": "5"}
    driver.run(*(order(name, tmp_path, conf=conf) for name in ("windows", "join")))
    for name in ("windows", "join"):
        reference.check(driver, name, tmp_path)


def _what_is_left(folder: Path, name: str, driver: Driver) -> tuple[dict[str, str], list[list[str]]]:
    return read_output(folder / name), driver.state(name, folder / name)
