"""The clocks of a partition: which instants have passed, and when a batch without rows has something to do there.

Spark has one kind of time-out per operator. In event time it drops late rows itself, unless the processor takes them,
and the shim calls a partition without rows once the watermark has passed the partition's time-out. In processing time
Spark drops no rows, and makes a batch at every trigger. Rows that Spark did not drop are late up to the event time that
the plan has told: the watermark of the batch before.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyspark_ckpt.operators.declarations.operator import GROUPS
from pyspark_ckpt.operators.session.told_operators import NO_WATERMARK, Clocks
from pyspark_ckpt.operators.session.views import open_reader
from pyspark_ckpt.operators.types.conversions import EPOCH
from pyspark_ckpt.state_store.errors import FormatError, InternalError, InvalidInputError
from pyspark_ckpt.state_store.format.spark_groups import NO_TIME_OUT, GroupTimesRow, encode_route_key

if TYPE_CHECKING:
    from pyspark_ckpt.operators.bound.timers import BoundTimers
    from pyspark_ckpt.operators.declarations.operator import KeyedOperator
    from pyspark_ckpt.operators.declarations.ttl import Clock
    from pyspark_ckpt.state_store.transactions.ticket import Ticket

GROUP_ROW = "watermark_ms long, processing_ms long"
"""The clocks at the group's last call, of those that it has timers for. All timers up to them have fired."""
_NEVER = 1 << 62
TIME_OUTS: Mapping[Clock | None, str] = {
    None: "NoTimeout",
    "event": "EventTimeTimeout",
    "processing": "ProcessingTimeTimeout",
}
"""Spark's names for the kinds of time-outs, by their clock."""


MAX_AHEAD_MS = 86_400_000
"""A day. A clock that is further ahead than this is wrong, and nothing goes by it."""


def read_group(ticket: Ticket) -> GroupTimesRow | None:
    """Return the row that the last call of a partition has left, None if there is none.

    Raises FormatError, StorageError, LifecycleError (the transaction of the task has ended).
    """
    state, reader = ticket.meta.state(GROUPS), open_reader(ticket)
    if state is None or not state.rows or reader is None:
        return None
    if ticket.num_partitions is None:
        raise InternalError(f"The ticket of partition {ticket.partition} does not say how many partitions there are.")
    key = encode_route_key(state.number, ticket.partition, ticket.num_partitions)
    (value,) = reader.get_many([key])
    if value is None:
        raise FormatError(f"Partition {ticket.partition} has no row of clocks, but its commit counts one.")
    return GroupTimesRow.decode(bytes(value), f"Partition {ticket.partition}")


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

    def __init__(self, operator: KeyedOperator, stored: GroupTimesRow | None, clocks: Clocks) -> None:
        """``stored``: the row that the last call has left. ``clocks``: those of the batch."""
        has_late = operator.has_watermark and clocks.late_ms != NO_WATERMARK
        self.new_row: GroupTimesRow | None = None
        """The row to store in place of the last one, if there is another: see ``end``."""
        self.late_until_ms = clocks.late_ms if has_late else None
        """Rows up to this event time are late in this batch, for this operator and for later ones."""
        self._clock = operator.time_out_clock
        sees_late_rows = self._clock == "processing" or operator.takes_late_rows
        self.late_ms = self.late_until_ms if sees_late_rows and not operator.keeps_late_rows else None
        """The same for the rows that this operator gets. None if Spark drops late ones, or none is treated as late."""
        self.fired_ms: Mapping[Clock, int] = {}
        if stored is not None:
            self.fired_ms = {"event": stored.watermark_ms, "processing": stored.processing_ms}
        self._batch_ms = clocks.processing_ms
        self.stored_ms = self.fired_ms.get("processing", 0)
        """The clock of processing time at the last call."""
        if self.stored_ms > self._batch_ms + MAX_AHEAD_MS:
            self.fired_ms = {"event": self.fired_ms["event"]}
        self.processing_ms = max(self._batch_ms, self.fired_ms.get("processing", 0))
        self.watermark_ms = NO_WATERMARK
        if operator.has_watermark:
            self.watermark_ms = max(0, clocks.watermark_ms, self.fired_ms.get("event", 0))
        self.now_ms: Mapping[Clock, int] = {
            "event": max(0, self.watermark_ms, self.fired_ms.get("event", 0)),
            "processing": self.processing_ms,
        }

    def move(self, now_ms: int) -> None:
        """Go on to a later processing time. A clock that goes back stands still."""
        self.processing_ms = max(now_ms, self.processing_ms)
        self._batch_ms = max(now_ms, self._batch_ms)
        self.now_ms = {**self.now_ms, "processing": self.processing_ms}

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

    def end(self, timers: Iterable[BoundTimers], left_ms: Mapping[Clock, int] = MappingProxyType({})) -> None:
        """Make the row to store: the clocks, and when the first of ``timers`` is due.

        ``left_ms``: when the first timers are due that this program does not declare. They have not fired, so the
        remembered clocks stay before them, and a program that declares them again finds them.
        """
        if self._clock is None:
            return
        clocks: Sequence[Clock] = ("event", "processing")
        event_ms, processing_ms = (min(self.now_ms[clock], left_ms.get(clock, _NEVER) - 1) for clock in clocks)
        waiting = [(each.clock, at) for each in timers if (at := each.rows.earliest_ms()) is not None]
        processing_ms = processing_ms if self._clock == "processing" else 0
        self.new_row = GroupTimesRow(event_ms, processing_ms, self._time_out(waiting))

    def _time_out(self, waiting: Sequence[tuple[Clock, int]]) -> int:
        """Return the instant after which a partition without rows is called. A clock must be past it."""
        if not waiting:
            return NO_TIME_OUT
        first = min(at for _, at in waiting)
        if self._clock == "event":
            return max(1, first - 1)
        if any(clock == "event" for clock, _ in waiting):  # the batch's clock does not tell when one of these is due
            return self._batch_ms + 1
        return max(self._batch_ms + 1, first - 1)


def show_instant(at_ms: int) -> str:
    """Return an instant as errors and warnings have it, whatever year it is in."""
    try:
        return f"{(EPOCH + timedelta(milliseconds=at_ms)).replace(tzinfo=None).isoformat(' ', 'seconds')} UTC"
    except OverflowError:
        return f"{at_ms:,} ms after 1970"
