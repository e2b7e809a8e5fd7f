"""Time to live in event time: no result depends on how rows are cut into batches.

Each run has one random program of each form, other ones in each turn. ``CKPT_CUT_SEEDS=200`` takes so many, with more
rows and more cuts; ``CKPT_CUT_SEEDS=69,74`` takes these.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from integration.turns import PARTS, find_turn
from pyspark_ckpt import testing
from tests.testing.event_lives import CONNECTED, FORMS, make_example

GIVEN = os.environ.get("CKPT_CUT_SEEDS")
ROWS, CUTS = (10, 1) if GIVEN is None else (15, 2)


def _list_seeds() -> list[int]:
    """Seeds by the setting: how many, or which; without it, those whose turn it is."""
    if GIVEN is None:
        turn = find_turn()
        return list(range(PARTS * FORMS) if turn is None else range(turn % PARTS * FORMS, (turn % PARTS + 1) * FORMS))
    return list(map(int, GIVEN.rstrip(",").split(","))) if "," in GIVEN else list(range(int(GIVEN)))


@pytest.mark.usefixtures("quick_path")
@pytest.mark.parametrize("seed", _list_seeds())
def test_results_do_not_depend_on_the_cut_when_states_live_by_event_time(seed: int) -> None:
    example = make_example(seed, ROWS)
    is_ordered = seed % FORMS == CONNECTED  # by order_by, which real-time mode does not have
    testing.check_cuts(example.start, example.rows, cuts=CUTS, seed=seed, real_time=not is_ordered)


class Remembered(ckpt.KeyedProcessor):
    """Elements of ten minutes, counted by a timer five minutes after each."""

    seen = ckpt.ListState("seen", "timestamp", ttl=ckpt.Ttl("10 minutes", clock="event"))
    later = ckpt.Timers("later", clock="event")

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> None:  # noqa: ANN401
        for row in rows:
            self.seen.add(row.at)
            self.later.register(row.at + timedelta(minutes=5))

    def on_timer(self, _ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[tuple[int, int]]:  # noqa: ANN401
        yield key.k, sum(1 for at in self.seen.get() if at < timer.at)


def test_a_watermark_that_is_moved_by_hand_frees_nothing_that_a_due_timer_reads() -> None:
    def start() -> ckpt.testing.Harness:
        stream = ckpt.testing.keyed("k int, at timestamp", by="k", watermark=("at", "1 minute"))
        return stream.process(Remembered(), "k int, n int", "append")

    begin = datetime(2026, 1, 1, tzinfo=timezone.utc)
    rows = [(1, begin), (1, begin + timedelta(hours=1))]
    ckpt.testing.check_cuts(start, rows, finish=lambda harness: harness.advance_watermark("1 day"))
    with start() as harness:
        harness.run(rows)
        harness.advance_watermark("1 day")
        assert sorted(harness.output) == [(1, 1), (1, 1)]
