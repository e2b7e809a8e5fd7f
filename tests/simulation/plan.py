"""All that a seed decides before a world begins."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.simulation import s3_client, shared_folder
from tests.simulation.events import EVENTS
from tests.simulation.weather import Weather

MOST_EVENTS = 14
S3, CARELESS, FOLDER = "s3", "careless s3", "folder"
PLACES = {S3: s3_client.FAULTS, CARELESS: s3_client.FAULTS, FOLDER: shared_folder.FAULTS}
"""The kinds of places, and what may befall a request to each."""
NOT_CARELESS = frozenset({"second driver", "driver is replaced", "change format", "go back over a sleeper"})
"""Where a service ignores conditions, drivers start one after the other, and all in checkpoint format 2."""


@dataclass(frozen=True)
class Event:
    """What befalls the world ``after_s`` after the event before. ``seed`` decides the details."""

    after_s: float
    kind: str
    seed: int

    def __str__(self) -> str:
        """Return the form used in stories."""
        return f"{self.kind} after {self.after_s:.0f} s"


@dataclass(frozen=True)
class Plan:
    """A query, its cluster, and what befalls them. The same plan makes the same world."""

    seed: int
    place: str
    partitions: int
    executors: int
    format: int
    keep: int
    """How many versions stay below the newest one: Spark's ``minBatchesToRetain``."""
    speculation: float
    """How probable a second attempt of a task is."""
    aborts: float
    """How probable it is that a task fails before it commits."""
    failures: float
    """How probable it is that a step fails at a fail point."""
    weather: Weather
    events: tuple[Event, ...]
    steps: float = 0.0
    """How probable it is that a thread loses its turn between two steps of its code; see ``steps``."""

    @classmethod
    def of(cls, seed: int, *, in_steps: bool = False) -> Plan:
        """Draw the plan of a seed."""
        draw = random.Random(f"plan {seed}")
        place = draw.choice((S3, S3, FOLDER, FOLDER, CARELESS))
        is_careless, faults = place == CARELESS, PLACES[place]
        kinds = [kind for kind in EVENTS if not (is_careless and kind in NOT_CARELESS)]
        return cls(
            seed=seed,
            place=place,
            partitions=draw.choice((1, 1, 2, 3)),
            executors=draw.randint(1, 3),
            format=2 if is_careless else draw.choice((1, 2)),
            keep=draw.randint(1, 4),
            speculation=draw.choice((0.0, 0.3)),
            aborts=draw.choice((0.0, 0.1)),
            failures=draw.choice((0.0, 0.0, 0.005)),
            weather=Weather(
                chance=draw.choice((0.0, 0.01, 0.05, 0.2)),
                kinds=tuple(draw.sample(faults, draw.randint(0, len(faults)))),
                latency_s=draw.choice((0.01, 0.2, 2.0)),
            ),
            events=tuple(
                Event(draw.choice((1, 10, 40, 90)) * draw.random(), draw.choice(kinds), draw.getrandbits(32))
                for _ in range(1 + int(MOST_EVENTS * draw.random() ** 2))
            ),
            steps=draw.choice((0.001, 0.01, 0.1)) if in_steps else 0.0,
        )
