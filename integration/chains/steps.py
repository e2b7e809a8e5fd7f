"""The operators of chains. Each stands beside what it must output, batch by batch, in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from pyspark.sql import functions as f

import pyspark_ckpt as ckpt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = "at timestamp, user int, n bigint"
US = 1_000_000

Row: TypeAlias = tuple[int, int, int]
"""Microsecond, user and number."""
State: TypeAlias = Mapping[Any, Any]


def instant(at_us: int) -> datetime:
    """The same as a datetime."""
    return datetime.fromtimestamp(at_us // US, timezone.utc).replace(microsecond=at_us % US)


def microsecond(at: datetime) -> int:
    """The same as a number."""
    whole = at.replace(tzinfo=at.tzinfo or timezone.utc, microsecond=0)
    return int(whole.timestamp()) * US + at.microsecond


class Sums(ckpt.KeyedProcessor):
    """Sums of periods. A timer outputs each when its period has ended, for the next operator's key."""

    sums = ckpt.MapState("sums", "bigint", "bigint")
    due = ckpt.Timers("due", clock="event")

    def __init__(self, period_us: int, keys: int) -> None:
        self.period_us, self.keys = period_us, keys

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> None:  # noqa: ANN401
        for row in rows:
            end = _end_of_period(microsecond(row.at), self.period_us)
            self.sums.put(end, (self.sums.get(end) or 0) + row.n)
            self.due.register(instant(end))

    def on_timer(self, _ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        total = self.sums.get(timer.at_us)
        self.sums.remove(timer.at_us)
        yield timer.at, key.user % self.keys, total


class SumsByBothClocks(Sums):
    """The same, where Spark's time-outs are those of processing time."""

    unused = ckpt.Timers("unused", clock="processing")


class SumsWithLate(Sums):
    """The same, with late rows, which are output at once."""

    def process_late(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        yield from ((row.at, key.user % self.keys, -row.n) for row in rows)


class SumsWithLateByBothClocks(SumsWithLate):
    """Both."""

    unused = ckpt.Timers("unused", clock="processing")


class Totals(ckpt.KeyedProcessor):
    """Outputs the total of a user after each row, and keeps the rows. Without timers, late rows are like others."""

    total = ckpt.ValueState("total", "bigint", default=0)
    seen = ckpt.ListState("seen", "bigint")

    def __init__(self, keys: int) -> None:
        self.keys = keys

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        for row in rows:
            self.seen.add(row.n)
            self.total.update(self.total.value() + row.n)
            yield row.at, key.user % self.keys, self.total.value()


class Step(Protocol):
    """One operator: how a query has it, and what it outputs in a batch."""

    def add_to(self, frame: DataFrame, uid: str) -> DataFrame:
        """Return the frame of its output."""

    def process(self, rows: Iterable[Row], late_us: int, mark_us: int) -> list[Row]:
        """Return what it outputs in a batch; rows up to ``late_us`` are late, instants up to ``mark_us`` have come."""

    def states(self) -> Mapping[str, State]:
        """Return what it keeps by the names of states; nothing for those of Spark's operators."""


@dataclass
class SumsStep:
    """One of the processors that sum up."""

    kind: type[Sums]
    period_us: int
    keys: int

    def __post_init__(self) -> None:
        self.sums: Counter[tuple[int, int]] = Counter()
        self.open: set[tuple[int, int]] = set()

    def add_to(self, frame: DataFrame, uid: str) -> DataFrame:
        """See Step."""
        return _keyed(frame, self.kind(self.period_us, self.keys), uid)

    def process(self, rows: Iterable[Row], late_us: int, mark_us: int) -> list[Row]:
        """See Step."""
        found: list[Row] = []
        for at_us, user, number in rows:
            if at_us > late_us:
                end = _end_of_period(at_us, self.period_us)
                self.sums[user, end] += number
                self.open.add((user, end))
            elif issubclass(self.kind, SumsWithLate):
                found.append((at_us, user % self.keys, -number))
        for user, end in [each for each in self.open if each[1] <= mark_us]:
            self.open.remove((user, end))
            found.append((end, user % self.keys, self.sums.pop((user, end))))
        return found

    def states(self) -> Mapping[str, State]:
        """See Step."""
        return {"sums": {key: self.sums[key] for key in self.open}}


@dataclass
class TotalsStep:
    """Running totals."""

    keys: int

    def __post_init__(self) -> None:
        self.seen: dict[int, list[int]] = {}

    def add_to(self, frame: DataFrame, uid: str) -> DataFrame:
        """See Step."""
        return _keyed(frame, Totals(self.keys), uid, order_by=("at", "n"))

    def process(self, rows: Iterable[Row], late_us: int, mark_us: int) -> list[Row]:  # noqa: ARG002
        """See Step."""
        found = []
        for at_us, user, number in sorted(rows, key=lambda row: (row[0], row[2])):
            seen = self.seen.setdefault(user, [])
            seen.append(number)
            found.append((at_us, user % self.keys, sum(seen)))
        return found

    def states(self) -> Mapping[str, State]:
        """See Step."""
        return {"total": {user: sum(seen) for user, seen in self.seen.items()}, "seen": self.seen}


@dataclass
class DistinctStep:
    """Spark's deduplication."""

    def __post_init__(self) -> None:
        self.seen: set[Row] = set()

    def add_to(self, frame: DataFrame, uid: str) -> DataFrame:  # noqa: ARG002
        """See Step."""
        return frame.dropDuplicates(["at", "user", "n"])

    def process(self, rows: Iterable[Row], late_us: int, mark_us: int) -> list[Row]:  # noqa: ARG002
        """See Step."""
        new = {row for row in rows if row[0] > late_us} - self.seen
        self.seen |= new
        return list(new)

    def states(self) -> Mapping[str, State]:
        """See Step."""
        return {}


@dataclass
class WindowsStep:
    """Spark's sums of windows."""

    period_us: int

    def __post_init__(self) -> None:
        self.sums: Counter[tuple[int, int]] = Counter()
        self.open: set[tuple[int, int]] = set()

    def add_to(self, frame: DataFrame, uid: str) -> DataFrame:  # noqa: ARG002
        """See Step."""
        windows = frame.groupBy(f.window("at", f"{self.period_us} microseconds"), "user").agg(f.sum("n").alias("n"))
        return windows.select(f.window_time("window").alias("at"), "user", "n")

    def process(self, rows: Iterable[Row], late_us: int, mark_us: int) -> list[Row]:
        """See Step."""
        for at_us, user, number in rows:
            end = _end_of_period(at_us, self.period_us)
            if end > late_us:
                self.sums[end, user] += number
                self.open.add((end, user))
        due = [each for each in self.open if each[0] <= mark_us]
        self.open.difference_update(due)
        return [(end - 1, user, self.sums.pop((end, user))) for end, user in due]

    def states(self) -> Mapping[str, State]:
        """See Step."""
        return {}


def _keyed(frame: DataFrame, processor: ckpt.KeyedProcessor, uid: str, order_by: Sequence[str] = ()) -> DataFrame:
    stream = ckpt.keyed(frame, "user", uid=uid, order_by=order_by)
    return stream.process(processor, COLUMNS, "append", event_time="at")


def _end_of_period(at_us: int, period_us: int) -> int:
    return at_us // period_us * period_us + period_us
