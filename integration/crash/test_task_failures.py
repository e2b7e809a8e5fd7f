"""Tasks that fail and are tried again: a killed Python worker, user code that raises before and after the commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration.crash.driver import FORMAT, Driver, OrderFailedError, Relay
from integration.crash.faults import NEWEST
from integration.crash.reference import Reference, order, read_output
from integration.crash.workload import QUERIES

pytestmark = [pytest.mark.spark, pytest.mark.kill]

# Side by side in one driver: what fails in each query, its checkpoint format, and perhaps in which batch.
FAULTS = [
    {
        "groups": ("kill_worker", 1),
        "join": ("kill_worker", 2),
        "keyed": ("kill_worker", 1),
        "dedup": ("raise_midway", 2),
        "windows": ("raise_at_end", 2),
        "processor": ("kill_worker", 2),
    },
    {
        "groups": ("raise_midway", 2),
        "keyed": ("raise_midway", 2, 0),  # with its initial state
        "join": ("raise_at_end", 1),
        "dedup": ("raise_at_end", 2),
        "processor": ("raise_midway", 1),
    },
]


@pytest.mark.in_turn
@pytest.mark.parametrize("faults", FAULTS)
def test_state_and_output_are_right_when_a_task_fails_once(
    faults: dict[str, tuple[Any, ...]], local: Relay, reference: Reference, tmp_path: Path
) -> None:
    driver = local.driver()
    struck = {name: fault for name, fault in faults.items() if name in QUERIES}
    orders = [
        order(
            name,
            tmp_path,
            conf={FORMAT: str(min(version, NEWEST))},
            fault={"kind": kind, "marker": str(tmp_path / f"struck-{name}"), "batch": (*batch, 2)[0]},
        )
        for name, (kind, version, *batch) in struck.items()
    ]
    driver.run(*orders)
    for name in struck:
        assert (tmp_path / f"struck-{name}").exists()
        reference.check(driver, name, tmp_path)


@pytest.mark.parametrize(
    ("names", "version"), [(("windows", "keyed"), 1), pytest.param(("groups", "keyed"), 2, marks=pytest.mark.matrix)]
)
def test_state_is_that_of_the_fixed_program_when_an_uncommitted_batch_runs_again(
    names: tuple[str, ...], version: int, local: Relay, reference: Reference, tmp_path: Path
) -> None:
    driver = local.driver()
    conf = {FORMAT: str(version)}
    quiet, broken = tmp_path / "quiet", tmp_path / "broken"

    for name in names:
        reference.start_from_half(name, version, quiet)
        reference.start_from_half(name, version, broken)
    driver.run(*(order(name, quiet, conf=conf, weight=10) for name in names))
    with pytest.raises(OrderFailedError) as failed:
        driver.run(*(order(name, broken, conf=conf, fail_at=3) for name in names))
    assert str(failed.value).count("made-up failure of the sink") >= len(names)
    driver.run(*(order(name, broken, conf=conf, weight=10, program_may_change=True) for name in names))

    for name in names:
        assert _what_is_left(broken, name, driver) == _what_is_left(quiet, name, driver)
        assert driver.state(name, broken / name) != reference.outcomes[name].state
    assert driver.lock_trouble() == []


def test_state_and_output_are_right_when_restarted_with_another_number_of_partitions_in_the_conf(
    local: Relay, reference: Reference, tmp_path: Path
) -> None:
    driver = local.driver()
    for name in ("windows", "join"):
        reference.start_from_half(name, NEWEST, tmp_path)
    conf = {"spark.sql.shuffle.partitions": "5"}
    driver.run(*(order(name, tmp_path, conf=conf) for name in ("windows", "join")))
    for name in ("windows", "join"):
        reference.check(driver, name, tmp_path)


def _what_is_left(folder: Path, name: str, driver: Driver) -> tuple[dict[str, str], list[list[str]]]:
    return read_output(folder / name), driver.state(name, folder / name)
