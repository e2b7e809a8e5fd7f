"""Long tests, and older Sparks, that take turns: ``make test`` runs a part of them, and another part after each hour.

The hour is that of the newest commit, so that a commit always has the same tests. ``CKPT_TURN`` sets the turn, 0 to 43.
In 44 turns, each part of the tests meets each older Spark. ``CKPT_TURN=all`` and ``CKPT_MATRIX=all`` take all.
``python -m integration.turns`` prints the older Sparks of this turn.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TypeVar

from integration.sample import ALL
from pyspark_ckpt.pyspark_releases import find_release

PARTS = 11
OLDER = ("3.5", "4.0", "4.1", "4.2")
TURNS = PARTS * len(OLDER)

_HOUR_S = 3600

T = TypeVar("T")


def find_turn() -> int | None:
    """Which turn it is; None: all of them."""
    given = os.environ.get("CKPT_TURN", "all" if ALL else "")
    if given == "all":
        return None
    if given:
        if not given.isdecimal() or int(given) >= TURNS:
            raise ValueError(f"CKPT_TURN is {given!r}: set it to a number from 0 to {TURNS - 1}, or to `all`.")
        return int(given)
    return _committed_s() // _HOUR_S % TURNS


def is_older() -> bool:
    """Whether the Spark that is installed is one of the older ones."""
    return find_release().startswith(OLDER)


def take(each: list[T], turn: int | None) -> list[T]:
    """Those whose turn it is."""
    return each if turn is None else each[turn % PARTS :: PARTS]


def take_older(turn: int | None) -> list[str]:
    """Those older Sparks whose turn it is: one of them each time."""
    return list(OLDER) if turn is None else [OLDER[turn % len(OLDER)]]


def _committed_s() -> int:
    """When the newest commit was made, in seconds since 1970; 0 where there is no repository."""
    git = shutil.which("git")
    if git is None:
        return 0
    here = Path(__file__).parent
    done = subprocess.run([git, "log", "-1", "--format=%ct"], cwd=here, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 0


if __name__ == "__main__":
    print(*take_older(find_turn()))
