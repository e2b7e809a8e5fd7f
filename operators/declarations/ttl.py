"""Time to live: rows expire some time after they were last written or read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeAlias

from pyspark_ckpt.operators.declarations.durations import milliseconds
from pyspark_ckpt.state_store.arguments import require_truth
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.meta import TimeToLive

_MAX_DURATION_MS = 1 << 62
"""The instant at which a row expires must fit into the 64 bits of a stamp."""

Refresh: TypeAlias = Literal["on_create_and_write", "on_read_and_write"]
Clock: TypeAlias = Literal["processing", "event"]


@dataclass(frozen=True)
class Ttl:
    """How long rows of a state live. Each list element and each map entry expires on its own.

    ``duration``: ``"7 days"``, ``"1 hour 30 minutes"`` or a timedelta, at least a millisecond. ``refresh``: what
    restarts a row's time to live: writes, or also reads (``"on_read_and_write"``). ``clock``: ``"processing"``, the
    batch's time, or ``"event"``, the rows' time. ``show_expired``: whether reads return expired rows until a batch
    frees them. The duration may change later, the clock may not. Raises InvalidInputError.
    """

    duration: str | timedelta
    refresh: Refresh = "on_create_and_write"
    clock: Clock = "processing"
    show_expired: bool = False

    def __post_init__(self) -> None:
        """Raises InvalidInputError."""
        if self.duration_ms < 1:
            raise InvalidInputError(f"A time to live of {self.duration!r} is too short: give a millisecond or more.")
        if self.duration_ms > _MAX_DURATION_MS:
            raise InvalidInputError(
                f"A time to live of {self.duration!r} is too long: give at most {_MAX_DURATION_MS} ms.",
                hint="Leave out the time to live for rows that never expire.",
            )
        for field, known in (
            ("refresh", ("on_create_and_write", "on_read_and_write")),
            ("clock", ("processing", "event")),
        ):
            if getattr(self, field) not in known:
                raise InvalidInputError(f"Ttl: {field} is {getattr(self, field)!r}, not one of {known}.")
        require_truth(self.show_expired, "Ttl: show_expired")

    @property
    def duration_ms(self) -> int:
        """The duration in milliseconds."""
        return milliseconds(self.duration)

    def describe(self) -> TimeToLive:
        """Return the time to live as a state's descriptor stores it."""
        return TimeToLive(self.duration_ms, self.refresh, self.clock)
