"""Random lives of a query, each from one number: no shrinking, several a second."""

from __future__ import annotations

import random
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

from tests.stateful.life import Life

STEPS = {
    Life.run_a_batch: 6,
    Life.run_for_a_while: 5,
    Life.begin: 3,
    Life.write: 1,
    Life.commit: 4,
    Life.abort: 1,
    Life.read: 3,
    Life.read_again: 1,
    Life.snapshot: 4,
    Life.clean_up: 4,
    Life.compact: 2,
    Life.overlap: 5,
    Life.wait: 2,
    Life.restart_the_query: 1,
    Life.rewind_the_query: 1,
    Life.zombie_begins: 1,
    Life.executor_is_lost: 2,
    Life.executor_lets_go: 1,
    Life.credentials_expire: 0.3,
    Life.credentials_are_renewed: 3,
}
"""Every step, and how often it is taken."""

FEWEST, MOST = 10, 30
IN_MEMORY = Path("/dev/shm")
"""Where RocksDB need not wait for a disk, on systems that have it."""


@dataclass(frozen=True)
class Wrong:
    """A life that was not as it must be."""

    seed: int
    what: str
    schedule: list[str]

    def __str__(self) -> str:
        """Everything that is needed to look into it."""
        return "\n".join((f"seed {self.seed}", *self.schedule, self.what))


def live(seed: int) -> Wrong | None:
    """Run one schedule; what was wrong, or None."""
    draw = random.Random(seed)
    life = Life(scratch_folder(), seed, draw)
    try:
        for step in draw.choices(list(STEPS), list(STEPS.values()), k=draw.randint(FEWEST, MOST)):
            life.take(step.__get__(life), draw)
        life.recover(draw)
    except Exception:  # noqa: BLE001 - whatever it is, it is wrong
        return Wrong(seed, traceback.format_exc(), life.query.network.events)
    finally:
        life.query.end()
    return None


def scratch_folder() -> Path:
    """A new folder for one life."""
    return Path(tempfile.mkdtemp(prefix="life-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
