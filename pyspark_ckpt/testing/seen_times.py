"""The watermark of a query, computed as Spark does from the event times that its inputs have had."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pyspark_ckpt.operators.declarations.operator import NEVER_LATE
from pyspark_ckpt.operators.session.told_operators import NO_WATERMARK

if TYPE_CHECKING:
    from numpy.typing import NDArray


_ALWAYS = 1 << 63


@dataclass(frozen=True)
class Watermark:
    """The event time of an input: its column, and the delay of the watermark.

    ``idle_after_ms``: after so long without rows, in processing time, the input does not count; None if it always does.
    """

    column: str
    delay_ms: int
    idle_after_ms: int | None = None


@dataclass(frozen=True)
class SeenTimes:
    """The newest event time of each input that has a watermark, less its delay; None before its first row.

    ``rows_ms``: the processing time of the last batch that had rows of the input, or else of the first batch; None
    before it. ``takes_latest``: with several watermarks, the latest counts; else the earliest, for which an input
    without rows counts as 1970.
    """

    watermarks: tuple[Watermark | None, ...]
    newest_ms: tuple[int | None, ...]
    rows_ms: tuple[int | None, ...]
    takes_latest: bool

    @classmethod
    def of(cls, watermarks: Sequence[Watermark | None], dumped: str | None = None, *, takes_latest: bool) -> SeenTimes:
        """Return the times of inputs without rows so far, or as they were when ``dump`` returned ``dumped``."""
        none = (None,) * len(watermarks)
        unseen = cls(tuple(watermarks), none, none, takes_latest)
        return unseen._load(dumped) if dumped is not None and unseen.is_kept else unseen

    @property
    def is_kept(self) -> bool:
        """Whether a query keeps them over a restart: if an input can be idle."""
        return any(mark is not None and mark.idle_after_ms is not None for mark in self.watermarks)

    def restart(self) -> SeenTimes:
        """Return them after a restart of the query: as in Spark, an input counts again with its first rows."""
        return self if self.is_kept else self.of(self.watermarks, takes_latest=self.takes_latest)

    def dump(self) -> str | None:
        """Return the content of a checkpoint's file about inputs that can be idle; None if there is none."""
        if not self.is_kept:
            return None
        entries: list[dict[str, object]] = [
            {"column": column, "number": number, "sources": [], "watermarkMs": newest_ms, "seenMs": rows_ms}
            for (column, number), newest_ms, rows_ms in zip(self._names(), self.newest_ms, self.rows_ms, strict=True)
            if column is not None
        ]
        return f"v1\n{json.dumps({'inputs': entries})}"

    def _load(self, content: str) -> SeenTimes:
        entries = json.loads(content.split("\n")[1])["inputs"]
        found = {(each["column"], each["number"]): (each["watermarkMs"], each["seenMs"]) for each in entries}
        newest_ms, rows_ms = zip(*(found.get(name, (None, None)) for name in self._names()), strict=True)
        return replace(self, newest_ms=newest_ms, rows_ms=rows_ms)

    def _names(self) -> list[tuple[str | None, int]]:
        """Return the column of each input, and a number that tells inputs with the same column apart."""
        columns = [None if mark is None else mark.column for mark in self.watermarks]
        return [(column, columns[:place].count(column)) for place, column in enumerate(columns)]

    def see(self, event_us: Sequence[NDArray[np.int64]], processing_ms: int) -> SeenTimes:
        """Return them after a batch with these event times for each input, in microseconds since 1970."""
        newest = list(self.newest_ms)
        rows_ms = tuple(
            processing_ms if before_ms is None or len(times) else before_ms
            for before_ms, times in zip(self.rows_ms, event_us, strict=True)
        )
        for number, (times, watermark) in enumerate(zip(event_us, self.watermarks, strict=True)):
            known = times[times != NEVER_LATE]
            if watermark is not None and len(known):
                seen_ms, before_ms = int(known.max()) // 1000 - watermark.delay_ms, newest[number]
                newest[number] = seen_ms if before_ms is None else max(seen_ms, before_ms)
        return replace(self, newest_ms=tuple(newest), rows_ms=rows_ms)

    def advance(self, watermark_ms: int, processing_ms: int) -> int:
        """Return the watermark that follows ``watermark_ms``: never an earlier one.

        If all inputs are idle, only the last to become idle count.
        """
        if watermark_ms == NO_WATERMARK:
            return NO_WATERMARK
        marks = [
            (newest_ms or 0, _ALWAYS if mark.idle_after_ms is None else (rows_ms or 0) + mark.idle_after_ms)
            for newest_ms, rows_ms, mark in zip(self.newest_ms, self.rows_ms, self.watermarks, strict=True)
            if mark is not None
        ]
        counts_from_ms = min(processing_ms + 1, max(idle_ms for _, idle_ms in marks))
        counting = [newest_ms for newest_ms, idle_ms in marks if idle_ms >= counts_from_ms]
        return max(watermark_ms, max(counting) if self.takes_latest else min(counting))
