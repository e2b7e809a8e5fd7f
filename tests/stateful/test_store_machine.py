"""Random lives of one store against a dict: whatever happens, a version reads as it was committed.

The machine lets Hypothesis look for a short life that goes wrong; the schedules are many lives, each from a number.
``CKPT_SCHEDULES=1000`` runs so many of them, and ``CKPT_SCHEDULES=7,12`` these two.
"""

from __future__ import annotations

import os
import random

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.stateful.life import Life
from tests.stateful.schedules import STEPS, live, scratch_folder

AT_ONCE = 10
DRAWS = st.randoms(use_true_random=True)  # of one seed: what is drawn depends on when RocksDB compacts, too


class StoreMachine(RuleBasedStateMachine):
    """Every step of a life as a rule."""

    @initialize(seed=st.integers(0, 1 << 32), draw=DRAWS)
    def start(self, seed: int, draw: random.Random) -> None:
        self.life = Life(scratch_folder(), seed, draw)

    @rule(step=st.sampled_from([step.__name__ for step in STEPS]), draw=DRAWS)
    def take(self, step: str, draw: random.Random) -> None:
        self.life.take(getattr(self.life, step), draw)

    @rule(draw=DRAWS)
    def recover(self, draw: random.Random) -> None:
        self.life.recover(draw)

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.life.query.end()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=3,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
)


def seeds() -> list[int]:
    chosen = os.environ.get("CKPT_SCHEDULES", "10")
    return [int(seed) for seed in chosen.split(",")] if "," in chosen else list(range(int(chosen)))


@pytest.mark.in_turn
@pytest.mark.parametrize("some", [seeds()[start : start + AT_ONCE] for start in range(0, len(seeds()), AT_ONCE)])
def test_every_schedule_ends_well(some: list[int]) -> None:
    wrong = [str(found) for found in map(live, some) if found is not None]
    assert not wrong, "\n\n".join(wrong)
