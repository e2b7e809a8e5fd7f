"""SIGKILL of the driver at every step of a micro-batch, then a restart on the same checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import pytest

from integration.crash.driver import Relay
from integration.crash.faults import FAIL_POINTS, FORMATS, SOAK, all_armed
from integration.crash.reference import Reference, order
from integration.crash.workload import QUERIES
from pyspark_ckpt.state_store.failpoints import NAMES

# One kill meets a transaction at each of these steps: several queries run, and a step holds up the first to get there.
# Who is held at an ingest holds up the maintenance of its store: those steps have no maintenance beside them.
STEPS = (
    ("begin.before", "commit.before_upload", "snapshot.before_manifest"),
    ("begin.after_ticket", "commit.after_upload", "snapshot.after_manifest"),
    ("restore.before_download", "commit.before_answer", "cleanup.before_delete"),
    ("restore.after_download", "commit.before_ingest", "commit.after_ingest"),
)
PARTS = ("jvm", "both", "python")
SAMPLE = [
    (steps, PARTS[n % len(PARTS)], FORMATS[n % len(FORMATS)], (QUERIES * 2)[n : n + 3]) for n, steps in enumerate(STEPS)
]
LONG_MS = 900_000

pytestmark = [pytest.mark.spark, pytest.mark.kill]


def test_every_step_is_among_those_at_which_the_driver_is_killed() -> None:
    assert {step for steps in STEPS for step in steps} == NAMES


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("steps", "part", "version", "names"),
    list(product(STEPS, PARTS, FORMATS, [QUERIES])) if SOAK else SAMPLE,
    ids=str,
)
def test_state_and_output_are_right_after_a_restart_when_the_driver_is_killed(
    steps: tuple[str, ...],
    part: str,
    version: int,
    names: tuple[str, ...],
    local: Relay,
    reference: Reference,
    tmp_path: Path,
) -> None:
    for name in names:
        reference.start_from_half(name, version, tmp_path)
    conf = all_armed(steps, f"sleep={LONG_MS}", version)
    _run_and_kill(steps, part, names, conf, local, reference, tmp_path)


# In the first batch, one partition has not stored its state, and the other has.
FIRST = [("commit.before_upload", "commit.after_upload"), ("begin.before", "commit.before_answer")]


@pytest.mark.parametrize(
    ("steps", "version"), list(product(FIRST, FORMATS)) if SOAK else [(FIRST[0], FORMATS[0])], ids=str
)
def test_the_initial_state_is_there_once_when_the_driver_is_killed_in_the_first_batch(
    steps: tuple[str, ...], version: int, local: Relay, reference: Reference, tmp_path: Path
) -> None:
    conf = all_armed(steps, f"sleep={LONG_MS}", version, pass_number=1)
    _run_and_kill(steps, "both", ("keyed",), conf, local, reference, tmp_path)


def _run_and_kill(
    steps: Sequence[str],
    part: str,
    names: Sequence[str],
    conf: Mapping[str, str],
    local: Relay,
    reference: Reference,
    tmp_path: Path,
) -> None:
    """Run queries, kill their driver when each of ``steps`` was met, and look at what another one makes of them."""
    doomed = local.driver()
    doomed.lose_local_state()
    hold = {"batch": 4, "file": str(tmp_path / "never")}
    doomed.send("run", runs=[order(name, tmp_path, conf=conf, hold=hold) for name in names])
    for step in steps:
        doomed.await_fired(step)
    doomed.kill_driver(part)
    doomed.await_end()
    local.close()

    driver = local.driver()
    driver.run(*(order(name, tmp_path, conf={**conf, FAIL_POINTS: ""}) for name in names))
    for name in names:
        reference.check(driver, name, tmp_path)
