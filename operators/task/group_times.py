"""The clocks of a partition's only Spark group: which instants have passed, and when Spark calls the group again.

Spark has one kind of time-out per operator. In event time it drops late rows itself, unless the processor takes them,
and calls a group without rows once the watermark has passed the group's time-out. In processing time it drops no rows,
and makes a batch at every trigger. Rows that Spark did not drop are late up to the event time that the plan has told:
the watermark of the batch before.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyspark_ckpt.operators.types.conversions import EPOCH
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql.streaming.state import GroupState

    from pyspark_ckpt.operators.bound.timers import BoundTimers
    from pyspark_ckpt.operators.declarations.operator import KeyedOperator
    from pyspark_ckpt.operators.declarations.ttl import Clock

GROUP_ROW = "watermark_ms long, processing_ms long"
"""The clocks at the group's last call, of those that it has timers for. All timers up to them have fired."""
NO_WATERMARK = -1
_NEVER = 1 << 62
TIME_OUTS: Mapping[Clock | None, str] = {
    None: "NoTimeout",
    "event": "EventTimeTimeout",
    "processing": "ProcessingTimeTimeout",
}
"""Spark's names for the kinds of time-outs, by their clock."""


MAX_AHEAD_MS = 86_400_000
"""A day. A clock that is further ahead than this is wrong, and nothing goes by it."""


def require_present(batch_ms: int, who: str, batch_id: int) -> None:
    """Raise InvalidInputError if a batch of operator ``who`` was planned in the future of this machine.

    Its time is in the log of offsets, so the batch is refused again when it is repeated.
    """
    ahead_ms = batch_ms - time.time_ns() // 1_000_000
    if ahead_ms > MAX_AHEAD_MS:
        raise InvalidInputError(
            f"{who}: batch {batch_id} was planned at {show_instant(batch_ms)}, by a clock that is "
            f"{timedelta(seconds=ahead_ms // 1000)} ahead of this machine's. Timers and times to live would follow it.",
            hint=f"Correct the driver's clock. Then delete the entry {batch_id} from the folder offsets of the "
            "checkpoint, so that the batch is planned again.",
        )


class GroupTimes:
    """The clocks of one call, as its timers and the program see them.

    A clock that has gone back since the last call, such as that of another driver, stands still. An instant that is in
    the future for the program is therefore never in the past for its timers. Only a clock of processing time that was
    more than MAX_AHEAD_MS ahead goes back, because it would stand still for long. Both times are stored, so a repeated
    batch does the same.
    """

    def __init__(self, operator: KeyedOperator, state: GroupState, late_ms: int | None = None) -> None:
        """``state``: the state that Spark has passed, unchanged. ``late_ms``: what the plan has told."""
        self._state = state
        self.late_until_ms = late_ms if operator.has_watermark else None
        """Rows up to this event time are late in this batch, for this operator and for later ones."""
        self._clock = operator.time_out_clock
        sees_late_rows = self._clock == "processing" or operator.takes_late_rows
        self.late_ms = self.late_until_ms if sees_late_rows and not operator.keeps_late_rows else None
        """The same for the rows that this operator gets. None if Spark drops late ones, or none is treated as late."""
        before = state.getOption
        self.fired_ms: Mapping[Clock, int] = {} if before is None else {"event": before[0], "processing": before[1]}
        self._batch_ms = state.getCurrentProcessingTimeMs()
        self.stored_ms = self.fired_ms.get("processing", 0)
        """The clock of processing time at the last call."""
        if self.stored_ms > self._batch_ms + MAX_AHEAD_MS:
            self.fired_ms = {"event": self.fired_ms["event"]}
        self.processing_ms = max(self._batch_ms, self.fired_ms.get("processing", 0))
        self.watermark_ms = NO_WATERMARK
        if operator.has_watermark:
            self.watermark_ms = max(state.getCurrentWatermarkMs(), self.fired_ms.get("event", 0))
        self.now_ms: Mapping[Clock, int] = {
            "event": max(0, self.watermark_ms, self.fired_ms.get("event", 0)),
            "processing": self.processing_ms,
        }

    @property
    def is_behind(self) -> bool:
        """Whether the batch was planned by an earlier clock than one before it."""
        return self.stored_ms > self._batch_ms

    def describe_behind(self) -> str:
        """Return what a warning says of a clock that is behind."""
        ahead = timedelta(seconds=(self.stored_ms - self._batch_ms) // 1000)
        what = f"an earlier batch was planned at {show_instant(self.stored_ms)}, by a clock that was {ahead} ahead"
        if self.processing_ms == self.stored_ms:
            return f"{what}: until then, processing time stands still, and none of its timers fires."
        return f"{what}: processing time goes back to {show_instant(self._batch_ms)}."

    def set_time_out(self, timers: Iterable[BoundTimers], left_ms: Mapping[Clock, int] = MappingProxyType({})) -> None:
        """Make Spark call the group when the first of ``timers`` is due, and remember the clocks.

        ``left_ms``: when the first timers are due that this program does not declare. They have not fired, so the
        remembered clocks stay before them, and a program that declares them again finds them.
        """
        if self._clock is None:
            return
        clocks: Sequence[Clock] = ("event", "processing")
        event_ms, processing_ms = (min(self.now_ms[clock], left_ms.get(clock, _NEVER) - 1) for clock in clocks)
        self._state.update((event_ms, processing_ms if self._clock == "processing" else 0))
        waiting = [(each.clock, at) for each in timers if (at := each.rows.earliest_ms()) is not None]
        if not waiting:
            return
        first = min(at for _, at in waiting)
        if self._clock == "event":  # a group times out when the clock is past the set time
            self._state.setTimeoutTimestamp(max(1, first - 1))
        elif any(clock == "event" for clock, _ in waiting):  # Spark's own clock does not tell when one of these is due
            self._state.setTimeoutDuration(1)
        else:  # Spark adds it to its own clock
            self._state.setTimeoutDuration(max(1, first - 1 - self._batch_ms))


def show_instant(at_ms: int) -> str:
    """Return an instant as errors and warnings have it, whatever year it is in."""
    try:
        return f"{(EPOCH + timedelta(milliseconds=at_ms)).replace(tzinfo=None).isoformat(' ', 'seconds')} UTC"
    except OverflowError:
        return f"{at_ms:,} ms after 1970"
