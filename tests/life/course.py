"""What a seed decides: the program, the rows of each batch, and what happens between the runs."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from random import Random
from typing import TYPE_CHECKING, Any

from tests.life.program import FAR_MS, PROGRAMS, PROGRAMS_WITH_RULES, READS, draw_act
from tests.life.rules import draw_rules
from tests.life.states import LARGE_CHARS, PLANS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.life.rules import Rule

Row = tuple[Any, ...]

START = datetime(2024, 5, 1, tzinfo=timezone.utc)
DELAY = timedelta(minutes=5)
STEP = timedelta(minutes=9)
"""Of the watermark from batch to batch, about."""
KEYS = [(f"key {n}" * (1 + n % 3), n * 1_000_003) for n in range(10)]
MAX_PARTITIONS = 5
INPUTS = ("left", "right")
_ACTION_NAMES = ("restart", "savepoint", "canonical", "rescale")


@dataclass(frozen=True)
class Run:
    """Files ``first`` to ``last`` - 1, with so many partitions, after an action."""

    action: str
    partitions: int
    first: int
    last: int


@dataclass(frozen=True)
class Course:
    """All that a seed decides. ``is_connected``: rows come in two inputs, merged by ``seq``.

    ``rules``: the broadcast rows of each batch; None for a program without any.
    """

    seed: int
    is_connected: bool
    program: Any
    batches: tuple[tuple[Row, ...], ...]
    runs: Sequence[Run]
    rules: tuple[tuple[Rule, ...], ...] | None = None

    @classmethod
    def of(cls, seed: int, batches: int = 14) -> Course:
        """Draw one of so many batches with rows."""
        draw = Random(seed)
        kind, is_connected = seed % len(PROGRAMS), seed // len(PROGRAMS) % 2 == 0
        has_rules = seed // len(PROGRAMS) % 4 in (1, 2)
        program = (PROGRAMS_WITH_RULES if has_rules else PROGRAMS)[kind]
        rows, rules = tuple(_Rows(draw, program).batches(batches)), draw_rules(seed, batches) if has_rules else None
        return cls(seed, is_connected, program, rows, tuple(_runs(draw, batches)), rules)

    def rules_of(self, batch: int) -> tuple[Rule, ...]:
        """Return the broadcast rows of a batch with rows."""
        return () if self.rules is None else self.rules[batch]

    def split(self, rows: Sequence[Row]) -> tuple[tuple[Row, ...], ...]:
        """Return the rows of each input."""
        if not self.is_connected:
            return (tuple(rows),)
        sides = [(row, zlib.crc32(str(row[2]).encode()) % 2) for row in rows]
        return tuple(tuple(row for row, side in sides if side == number) for number in range(2))

    def __str__(self) -> str:
        runs = ", ".join(f"{run.action} {run.partitions} [{run.first}:{run.last}]" for run in self.runs)
        inputs = "two inputs, " if self.is_connected else ""
        return f"seed {self.seed}: {self.program.__name__}, {inputs}{runs}"


def _runs(draw: Random, batches: int) -> Iterator[Run]:
    """The first has two batches: lives of what the first batch writes begin in the second, for all keys."""
    partitions, first, last, action = draw.randint(1, MAX_PARTITIONS), 0, 2, "start"
    while True:
        yield Run(action, partitions, first, last)
        if last == batches:
            return
        first, last = last, min(batches, last + draw.randint(1, 3))
        action = draw.choice(_ACTION_NAMES)
        if action != "restart":
            partitions = draw.randint(1, MAX_PARTITIONS)


class _Rows:
    """Draws the rows of one batch after the other."""

    def __init__(self, draw: Random, program: Any) -> None:  # noqa: ANN401
        self._draw = draw
        self._has_wall = "wall" in vars(program)
        self._seq = 0
        self._timers: dict[tuple[str, int], list[tuple[int, str]]] = {key: [] for key in KEYS}

    def batches(self, count: int) -> Iterator[tuple[tuple[Any, ...], ...]]:
        """The last one reads everything."""
        for number in range(count):
            draw = self._draw
            keys = [draw.choice(KEYS) for _ in range(draw.randint(4, 24))]
            if number in (1, count - 1):
                keys += KEYS
            yield tuple(self._row(number, key, is_last=number == count - 1) for key in keys)

    def _row(self, number: int, key: tuple[str, int], *, is_last: bool) -> tuple[Any, ...]:
        """None is late: all rows of a batch are after the watermark that the batches before it have left."""
        draw = self._draw
        self._seq += 1
        at = START + number * STEP + timedelta(seconds=draw.randrange(int(DELAY.total_seconds())))
        acts: list[Any] = [draw_act(draw) for _ in range(draw.randint(2, 9))]
        acts += [self._timer(number, key, at) for _ in range(draw.choice((0, 0, 1, 2)))]
        draw.shuffle(acts)
        if is_last:
            acts += [(name, READS[plan.kind][0], 0, 0) for name, plan in PLANS.items()]
        load = "x" * (LARGE_CHARS if draw.random() < 0.15 else draw.randrange(20))
        return (*key, self._seq, at, json.dumps(acts), load)

    def _timer(self, number: int, key: tuple[str, int], at: datetime) -> tuple[str, str, int, str]:
        """An act on a timer: no two timers of a key have one instant, but some one millisecond.

        Some are set to what the watermark is if no row of the batch is after this one, which is ``at``.
        """
        draw = self._draw
        self._seq += 1
        namespace = f"{self._seq:0{draw.randint(1, 6)}}"
        if self._has_wall and draw.random() < 0.4:
            wait_ms = 1 + self._seq % 60  # less than a batch takes: what is set to it is due in the next
            instant_ms = draw.choice((-wait_ms, wait_ms, FAR_MS + wait_ms))
            return "wall", draw.choice(("register", "register", "both")), instant_ms * 1000, namespace
        known = self._timers[key]
        if known and draw.random() < 0.3:
            at_us, namespace = draw.choice(known)
            return "due", "delete", at_us, namespace
        minutes = draw.randint(-30, 60)
        at_us = int((START + number * STEP + timedelta(minutes=minutes)).timestamp()) * 1_000_000 + self._seq * 250
        mark_us = int((at - DELAY).timestamp()) * 1_000_000
        if draw.random() < 0.3 and mark_us not in [known_us for known_us, _ in known]:
            at_us = mark_us
        known.append((at_us, namespace))
        return "due", draw.choice(("register", "register", "register", "both")), at_us, namespace
