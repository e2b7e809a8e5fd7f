"""What a seed decides: the chain, the rows of each batch, what happens between the runs, and what is killed in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from integration.chains.steps import (
    US,
    DistinctStep,
    Row,
    Step,
    Sums,
    SumsByBothClocks,
    SumsStep,
    SumsWithLate,
    SumsWithLateByBothClocks,
    TotalsStep,
    WindowsStep,
)
from pyspark_ckpt.state_store.failpoints import NAMES
from tests.life import course as life

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

START_US = 1_709_251_200 * US
"""2024-03-01."""
FAR_US = START_US + 1_000_000 * US
"""The last rows: they move the watermark past all others."""
DELAY_US = 20 * US
USERS = 20
MAX_PARTITIONS = 4
_KINDS = (Sums, SumsByBothClocks, SumsWithLate, SumsWithLateByBothClocks)
_ACTIONS = ("restart", "rescale", "savepoint", "canonical")
_PARTS = ("jvm", "both", "python")
_POINTS = ("", *sorted(name for name in NAMES if name.startswith(("begin", "commit"))))
DRIVER_EVERY = 3
"""One of so many courses kills the driver, which takes the longest to come back."""


@dataclass(frozen=True)
class Kill:
    """Kill ``victim`` ("server", "worker" or a part of the driver) at a fail point, or else ``after_s`` it is there."""

    victim: str
    after_s: float
    point: str = ""


@dataclass(frozen=True)
class Run(life.Run):
    """A run that may be killed."""

    kill: Kill | None


@dataclass(frozen=True)
class Course:
    """All that a seed decides."""

    seed: int
    steps: Sequence[Step]
    batches: Sequence[Sequence[Row]]
    runs: Sequence[Run]
    checkpoint_format: int

    @classmethod
    def of(cls, seed: int) -> Course:
        """Draw one."""
        draw = Random(seed)
        steps = list(_steps(draw))
        batches = [*_batches(draw), [(FAR_US, 0, 0)], [(FAR_US + US, 0, 0)]]
        runs = list(_runs(draw, len(batches), kills_driver=seed % DRIVER_EVERY == 0))
        return cls(seed, steps, batches, runs, 1 + seed % 2)

    def query(self, frame: DataFrame) -> DataFrame:
        """Build the chain on a frame of COLUMNS."""
        frame = frame.withWatermark("at", f"{DELAY_US} microseconds")
        for uid, step in self.named_steps().items():
            frame = step.add_to(frame, uid)
        return frame

    def named_steps(self) -> Mapping[str, Step]:
        """The steps, by their uids."""
        return {f"step {number}": step for number, step in enumerate(self.steps)}

    def __str__(self) -> str:
        runs = ", ".join(
            f"{run.action} {run.partitions} [{run.first}:{run.last}] {run.kill or ''}" for run in self.runs
        )
        return f"seed {self.seed}, format {self.checkpoint_format}: {' > '.join(map(repr, self.steps))}; {runs}"


def _steps(draw: Random) -> Iterator[Step]:
    """Two or three keyed operators, with some of Spark's own between."""
    for _ in range(draw.choice([2, 2, 3])):
        if draw.random() < 0.25:
            yield DistinctStep()
        if draw.random() < 0.25:
            yield WindowsStep(draw.choice([5, 30]) * US)
        keys = draw.choice([2, 3, 7])
        if draw.random() < 0.2:
            yield TotalsStep(keys)
        else:
            yield SumsStep(draw.choice(_KINDS), draw.choice([7, 10, 60, 61]) * US, keys)
    if draw.random() < 0.5:
        last: list[Callable[[], Step]] = [DistinctStep, partial(WindowsStep, 30 * US), partial(WindowsStep, 100 * US)]
        yield draw.choice(last)()


def _batches(draw: Random) -> Iterator[list[Row]]:
    """Rows in about the order of time, some of them late, some twice."""
    second = 0
    for _ in range(draw.randint(4, 6)):
        second += draw.randint(1, 90)
        rows = []
        for _ in range(draw.choice([1, 2, 20, 60])):
            back = draw.randint(0, 200) if draw.random() < 0.1 else draw.randint(-9, 9)
            at_us = START_US + (second - back) * US + draw.choice([0, 0, 1, 999_999])
            rows.append((at_us, draw.randrange(USERS), draw.randrange(100)))
        yield rows + rows[: draw.choice([0, 3])]


def _runs(draw: Random, batches: int, *, kills_driver: bool) -> Iterator[Run]:
    """Two to four runs. Something is killed in at least one; at least one begins with another number of partitions."""
    ends = sorted({*draw.sample(range(1, batches), draw.choice([1, 1, 2, 3])), batches})
    partitions = draw.randint(1, MAX_PARTITIONS)
    doomed, moved, first = draw.randrange(len(ends)), draw.randrange(1, len(ends)), 0
    for number, last in enumerate(ends):
        action = "start" if number == 0 else draw.choice(_ACTIONS[number == moved :])
        if action not in ("start", "restart"):
            partitions = draw.choice([each for each in range(1, MAX_PARTITIONS + 1) if each != partitions])
        kill = None
        if number == doomed and kills_driver:
            point = draw.choice(_POINTS)
            kill = Kill(draw.choice(_PARTS), 0 if point else draw.uniform(0.1, 4), point)
        elif number == doomed or draw.random() < 0.3:
            kill = Kill(draw.choice(["server", "worker"]), draw.uniform(0, 1.5))
        yield Run(action, partitions, first, last, kill)
        first = last
