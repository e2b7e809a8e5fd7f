"""Worlds that each follow from a seed: the engine on simulated machines, clocks and networks.

``CKPT_SIMULATED_SEEDS=5000`` runs so many of them, and ``CKPT_SIMULATED_SEEDS=7,12`` these two.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.plan import Plan

ROOT = Path(__file__).parents[2]
AT_ONCE = 50
GIVEN = os.environ.get("CKPT_SIMULATED_SEEDS", "500")
SEEDS = [(int(seed), int(seed) + 1) for seed in GIVEN.split(",")] if "," in GIVEN else [
    (first, min(first + AT_ONCE, int(GIVEN))) for first in range(0, int(GIVEN), AT_ONCE)
]  # fmt: skip


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run worlds in a process of their own: what the engine imports is replaced there."""
    command = [sys.executable, "-m", "tests.simulation", *arguments, "--processes", "1"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.parametrize(("first", "end"), SEEDS)
def test_nothing_goes_wrong_in_any_world(first: int, end: int) -> None:
    done = simulate(str(first), str(end))
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_goes_wrong_when_threads_lose_their_turn_between_any_two_steps() -> None:
    done = simulate("0", "5", "--steps")
    assert done.returncode == 0, done.stdout + done.stderr
    done = simulate("0", "60", "--scene", "all")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_race_that_is_put_back_is_found() -> None:
    done = simulate("0", "60", "--scene", "attempts of one store", "--mutant", "stores without their lock")
    assert done.returncode == 1, done.stderr
    assert "attempts of one store, seed" in done.stdout


@pytest.mark.parametrize("mutant", ["deletions without a notice", "table files go at the first look"])
def test_a_fault_of_retention_that_is_put_back_is_found(mutant: str) -> None:
    done = simulate("0", "60", "--scene", "snapshots beside clean ups", "--mutant", mutant)
    assert done.returncode == 1, done.stderr
    assert "snapshots beside clean ups, seed" in done.stdout


def test_a_fault_that_is_put_back_is_found_and_its_plan_is_made_shorter() -> None:
    done = simulate("49", "50", "--mutant", "a write whose answer was lost is another's")
    assert done.returncode == 1, done.stderr
    (plan,) = re.findall(r"shortest plan found: (Plan\(.*\))", done.stdout)
    assert plan.count("Event(") < str(Plan.of(49)).count("Event(")


@pytest.mark.parametrize("seed", [3, 9])  # a folder, and S3
def test_a_seed_makes_the_same_world_again(seed: int) -> None:
    first, again = simulate(str(seed)), simulate(str(seed))
    assert len(first.stdout.splitlines()) > 20, first.stderr
    assert first.stdout == again.stdout
