"""Time to live in event time: no result depends on how rows are cut into batches.

Each run has one random program of each form, other ones in each turn. ``CKPT_CUT_SEEDS=200`` takes so many, with more
rows and more cuts; ``CKPT_CUT_SEEDS=69,74`` takes these.
"""

from __future__ import annotations

import os

import pytest

from integration.turns import TURNS, find_turn
from pyspark_ckpt import testing
from tests.testing.event_lives import FORMS, make_example

GIVEN = os.environ.get("CKPT_CUT_SEEDS")
ROWS, CUTS = (10, 1) if GIVEN is None else (15, 2)


def _list_seeds() -> list[int]:
    """Seeds by the setting: how many, or which; without it, those whose turn it is."""
    if GIVEN is None:
        turn = find_turn()
        return list(range(TURNS * FORMS) if turn is None else range(turn * FORMS, (turn + 1) * FORMS))
    return list(map(int, GIVEN.rstrip(",").split(","))) if "," in GIVEN else list(range(int(GIVEN)))


@pytest.mark.usefixtures("quick_path")
@pytest.mark.parametrize("seed", _list_seeds())
def test_results_do_not_depend_on_the_cut_when_states_live_by_event_time(seed: int) -> None:
    example = make_example(seed, ROWS)
    testing.check_cuts(example.start, example.rows, cuts=CUTS, seed=seed)
