"""The watermark of a query, from the event times that its inputs have had, as Spark computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pyspark_ckpt.operators.declarations.operator import NEVER_LATE
from pyspark_ckpt.operators.task.group_times import NO_WATERMARK

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Watermark:
    """The event time of an input: its column, and how much later than it the watermark is."""

    column: str
    delay_ms: int


@dataclass(frozen=True)
class SeenTimes:
    """The newest event time of each input that has a watermark, less its delay; None before its first row.

    ``takes_latest``: with several watermarks, the latest counts; else the earliest, for which an input without rows
    counts as 1970.
    """

    watermarks: tuple[Watermark | None, ...]
    newest_ms: tuple[int | None, ...]
    takes_latest: bool

    @classmethod
    def of(cls, watermarks: Sequence[Watermark | None], *, takes_latest: bool) -> SeenTimes:
        """Return those of inputs that have had no rows."""
        return cls(tuple(watermarks), (None,) * len(watermarks), takes_latest)

    def see(self, event_us: Sequence[NDArray[np.int64]]) -> SeenTimes:
        """Return them after a batch with these event times for each input, in microseconds since 1970."""
        newest = list(self.newest_ms)
        for number, (times, watermark) in enumerate(zip(event_us, self.watermarks, strict=True)):
            known = times[times != NEVER_LATE]
            if watermark is not None and len(known):
                seen_ms, before_ms = int(known.max()) // 1000 - watermark.delay_ms, newest[number]
                newest[number] = seen_ms if before_ms is None else max(seen_ms, before_ms)
        return replace(self, newest_ms=tuple(newest))

    def advance(self, watermark_ms: int) -> int:
        """Return the watermark that follows ``watermark_ms``: never an earlier one."""
        if watermark_ms == NO_WATERMARK:
            return NO_WATERMARK
        marks = [ms or 0 for ms, mark in zip(self.newest_ms, self.watermarks, strict=True) if mark is not None]
        return max(watermark_ms, max(marks) if self.takes_latest else min(marks))
