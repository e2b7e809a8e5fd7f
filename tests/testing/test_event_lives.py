"""Time to live in event time: no result depends on how rows are cut into batches."""

from __future__ import annotations

import os

import pytest

from pyspark_ckpt import testing
from tests.testing.event_lives import make_example

FEW = 5
"""Of each form of program one."""


def _list_seeds() -> list[int]:
    """Seeds by the setting: how many, or which."""
    said = os.environ.get("CKPT_CUT_SEEDS", str(FEW))
    return list(map(int, said.rstrip(",").split(","))) if "," in said else list(range(int(said)))


@pytest.mark.parametrize("seed", _list_seeds())
def test_results_do_not_depend_on_the_cut_when_states_live_by_event_time(seed: int) -> None:
    example = make_example(seed)
    testing.check_cuts(example.start, example.rows, cuts=2, seed=seed)
