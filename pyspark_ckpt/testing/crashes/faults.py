"""The faults that ``crash`` chooses by a seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random

from pyspark_ckpt.state_store.failpoints import REQUESTS, file_name

_STEPS = ("begin.before", "begin.after_ticket", "commit.before_upload", "commit.after_upload", "commit.before_answer")
POINTS: Mapping[str, Sequence[str]] = {"step": _STEPS, "place": REQUESTS}
"""The fail points of each kind: at the steps of a commit, and at the requests to the place of the state."""
DRIVER = "driver"
REPLACED = "driver replaced"
PAUSED_DRIVER, PAUSED_SERVER = PAUSES = ("driver pauses", "server pauses")
KINDS = (DRIVER, REPLACED, "server", "worker", *PAUSES, *POINTS)
EXECUTOR = "executor"
MIN_S = 1.0
MAX_PAUSE_S = 3.0
MAX_SLEEP_MS = 3000
MAX_PASS = 6
"""A fail point fires at one of its first so many passes."""
RESCALES = 0.5
"""How likely a query is to be rescaled after its driver was killed."""


class Faults:
    """The faults that a seed has chosen, and those that have happened."""

    def __init__(self, seed: int, kinds: Sequence[str], count: int, seconds: float) -> None:
        """Choose ``count`` faults of some ``kinds``, spread over the ``seconds`` that the query runs without any."""
        self._draw = draw = Random(seed)  # noqa: S311 - repeatable, as far as the machine is
        self._wait_s = max(seconds, MIN_S) / max(1, count)
        """The longest time between two faults."""
        chosen = [draw.choice(kinds) for _ in range(count)]
        self._left = [kind for kind in chosen if kind not in POINTS]
        self._points = [
            f"{draw.choice(POINTS[kind])}:{_draw_action(draw)}@{draw.randint(1, MAX_PASS)}"
            for kind in chosen
            if kind in POINTS
        ]
        self.done: list[str] = []
        self.kills_driver = False

    @property
    def points(self) -> str:
        """The fail points that have not fired yet, as the option has them."""
        return ",".join(self._points)

    def note_fired(self, files: Iterable[str]) -> None:
        """Note which fail points have fired, by the names of their files."""
        names = set(files)
        fired = [point for point in self._points if file_name(point) in names]
        self.done += fired
        self._points = [point for point in self._points if point not in fired]

    def draw_kill(self) -> tuple[str, float]:
        """Return what befalls a process next, and after how many seconds; an empty name for nothing."""
        return (self._left[-1], self._draw.uniform(0, self._wait_s)) if self._left else ("", 0.0)

    def note(self, kind: str) -> None:
        """Note that a fault of this kind has happened."""
        self._left.pop()
        self.done.append(kind)
        self.kills_driver = kind == DRIVER

    def draw_pause_s(self) -> float:
        """Return how long a process pauses."""
        return self._draw.uniform(0, MAX_PAUSE_S)

    def draw_partitions(self, parallelism: int) -> int:
        """Return to how many partitions a query is rescaled; 0: it is not. It may be after its driver was killed."""
        was_killed, self.kills_driver = self.kills_driver, False
        return self._draw.randint(1, parallelism) if was_killed and self._draw.random() < RESCALES else 0


def _draw_action(draw: Random) -> str:
    """Draw what happens at a fail point."""
    return draw.choice(("kill", "error", f"sleep={draw.randint(1, MAX_SLEEP_MS)}"))
