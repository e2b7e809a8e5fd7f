"""A StatefulProcessor that does what rows say, and tells everything that it sees, in both forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)
from typing_extensions import override

START = datetime(2024, 3, 1, 12, 0, tzinfo=timezone.utc)
START_MS = int(START.timestamp() * 1000)
MINUTE_MS = 60_000
OUTPUT = "told string"
COLUMNS = "user int, op string, n long, text string, at timestamp"
OPERATIONS = (
    *("set", "set", "unset", "stamp", "add", "add", "extend", "put", "drop"),
    *("map", "map", "map", "unmap", "empty", "look", "register", "register", "register", "delete", "delete first"),
)
_TEXTS = ("", "a", "b", "é", None)

_NUMBER_AND_TEXT = StructType().add("n", LongType()).add("text", StringType())
_STAMP = StructType().add("at", TimestampType()).add("part", DecimalType(9, 2)).add("tags", ArrayType(StringType()))
_ENTRY = StructType().add("text", StringType()).add("n", IntegerType())
_COUNT = StructType().add("n", LongType()).add("at", TimestampType())


class Commands(StatefulProcessor):
    """Timers are ``unit_ms`` apart. ``base_ms``: where they begin; None for the time of the batch."""

    def __init__(self, *, of_frames: bool, base_ms: int | None, unit_ms: int, ttl_ms: int | None = None) -> None:
        self.of_frames = of_frames
        self.base_ms = base_ms
        self.unit_ms = unit_ms
        self.ttl_ms = ttl_ms
        self.has_timers = unit_ms > 0

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", _NUMBER_AND_TEXT, self.ttl_ms)
        self.stamp = handle.getValueState("stamp", _STAMP)
        self.list = handle.getListState("list", _NUMBER_AND_TEXT, self.ttl_ms)
        self.map = handle.getMapState("map", _ENTRY, _COUNT, self.ttl_ms)

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        now_ms, watermark_ms = timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs()
        begin_ms = self.base_ms or now_ms
        told = [self._show()]
        for op, n, text in sorted(self._list(rows), key=repr):  # rows of a key have no order
            told.append(f"{op} {n} {text!r} {self._do(op, n, text, begin_ms + n * self.unit_ms)!r}")
        told.append(self._show())
        yield self._tell(f"{now_ms}|{watermark_ms}|{tuple(key)}|rows|{' ; '.join(told)}")

    @override
    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        now_ms, watermark_ms = timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs()
        at_ms = expiredTimerInfo.getExpiryTimeInMs()
        told, way = [self._show()], at_ms // self.unit_ms % 6
        if way == 0:
            self.value.clear()
            self.handle.registerTimer(at_ms + 9 * self.unit_ms)
        elif way == 1:
            for other in list(self.handle.listTimers()):
                self.handle.deleteTimer(other)
        elif way == 2:
            self.handle.registerTimer(at_ms - 1)
        elif way == 3:
            self.list.appendValue((at_ms // self.unit_ms, "timer"))
            self.handle.registerTimer(at_ms)
        elif way == 4:
            self.map.clear()
            self.handle.deleteTimer(at_ms)
        told.append(self._show())
        early_ms = at_ms - (self.base_ms or now_ms)
        yield self._tell(f"{now_ms}|{watermark_ms}|{tuple(key)}|timer {early_ms}|{' ; '.join(told)}")
        if way == 5:
            yield self._tell(f"{now_ms}|{watermark_ms}|{tuple(key)}|again|")

    @override
    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        begin_ms = self.base_ms or timerValues.getCurrentProcessingTimeInMs()
        rows = initialState.itertuples(index=False) if self.of_frames else [initialState]
        for row in rows:
            self.list.appendValue((int(row.first), row.word))
            self.map.updateValue((row.word, int(row.first) % 2), (int(row.first), None))
            self.handle.registerTimer(begin_ms + int(row.first) * self.unit_ms)

    @override
    def close(self) -> None:
        """Nothing is open."""

    def _list(self, rows: Any) -> list[tuple[str, int, str | None]]:  # noqa: ANN401
        if not self.of_frames:
            return [(row.op, row.n, row.text) for row in rows]
        return [(row.op, int(row.n), row.text) for frame in rows for row in frame.itertuples(index=False)]

    def _tell(self, text: str) -> Any:  # noqa: ANN401
        if not self.of_frames:
            return Row(told=text)
        import pandas as pd

        return pd.DataFrame({"told": [text]})

    def _show(self) -> str:
        timers = sorted(self.handle.listTimers()) if self.has_timers else None
        there = [each.exists() for each in (self.value, self.stamp, self.list, self.map)]
        entries = sorted(self.map.iterator(), key=repr)
        assert sorted(map(repr, self.map.keys())) == sorted(repr(key) for key, _ in entries)
        assert sorted(map(repr, self.map.values())) == sorted(repr(value) for _, value in entries)
        return f"{there} {self.value.get()} {self.stamp.get()} {list(self.list.get())} {entries} {timers}"

    def _do(self, op: str, n: int, text: str | None, at_ms: int) -> Any:  # noqa: ANN401
        at, entry = datetime(2024, 1, 1) + timedelta(seconds=n), (text, n % 3)  # noqa: DTZ001 - as Spark gives instants
        part = (Decimal(n) / 4).quantize(Decimal("0.01"))
        calls: dict[str, Callable[[], Any]] = {
            "set": lambda: self.value.update((n, text)),
            "unset": self.value.clear,
            "stamp": lambda: self.stamp.update((at, part, [text, "x"])),
            "add": lambda: self.list.appendValue((n, text)),
            "extend": lambda: self.list.appendList([(n, text), (n + 1, None)]),
            "put": lambda: self.list.put([(n, text), (n, text)]),
            "drop": self.list.clear,
            "map": lambda: self.map.updateValue(entry, (n, at)),
            "unmap": lambda: self.map.removeKey(entry),
            "empty": self.map.clear,
            "look": lambda: (self.map.containsKey(entry), *(self.map.getValue(entry) or ())),
        }
        if op in calls:
            return calls[op]()
        if self.has_timers:
            self._set_timers(op, at_ms)
        return None

    def _set_timers(self, op: str, at_ms: int) -> None:
        if op == "register":
            self.handle.registerTimer(at_ms)
        elif op == "delete":
            self.handle.deleteTimer(at_ms)
        else:
            for first in list(self.handle.listTimers())[:1]:
                self.handle.deleteTimer(min(self.handle.listTimers(), default=first))


def make_rows(seed: int, batches: int, rows: int = 40, users: int = 6) -> tuple[tuple[tuple[Any, ...], ...], ...]:
    """Rows of random operations, four minutes a batch, of which some come late."""
    random = Random(seed)
    return tuple(
        tuple(
            (
                random.randrange(users),
                random.choice(OPERATIONS),
                random.randrange(-4, 4 * batches),
                random.choice(_TEXTS),
                START + timedelta(minutes=4 * batch - random.choice((0, 0, 0, 0, 9)), seconds=random.randrange(60)),
            )
            for _ in range(rows)
        )
        for batch in range(batches)
    )


def group_rows(rows: Sequence[tuple[Any, ...]]) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by key, as Row mode passes them."""
    grouped: dict[tuple[Any, ...], list[Row]] = {}
    for user, op, n, text, at in rows:
        grouped.setdefault((user,), []).append(Row(user=user, op=op, n=n, text=text, at=at))
    return grouped


class Watcher(StatefulProcessor):
    """Tells which rows and key it sees, with their types, and returns the rows as they came in ``seen``."""

    def __init__(self, *, of_frames: bool) -> None:
        self.of_frames = of_frames

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", StructType().add("n", LongType()))

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        rows = list(rows)
        (count,) = self.count.get() or (0,)
        self.count.update((count + sum(map(len, rows)) if self.of_frames else count + len(rows),))
        kinds = [type(value).__name__ for value in key]
        times = timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs()
        seen = list(map(show_frame, rows)) if self.of_frames else sorted(map(repr, rows))
        told = f"{key!r} {kinds} {count} {times} {seen} {type(rows[0]).__mro__[-2].__name__}"
        if self.of_frames:
            import pandas as pd

            yield pd.DataFrame({"other": [1], "told": [told]})
            yield pd.DataFrame()
            yield pd.DataFrame([[told]], columns=[0])
        else:
            yield Row(told=told)
            yield Row(other=1, told=None)


class Echo(StatefulProcessor):
    """Returns everything twice, as it came."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        """Needs no state."""

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for some in rows:
            yield some
            yield some


class Mixed(StatefulProcessor):
    """Keeps values of many types, some of other types than the state's that Spark converts, and tells what it finds."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        fields = "i int, f float, s string, d decimal(9,1), b binary, at timestamp, day date, ntz timestamp_ntz"
        nested = "r struct<at: timestamp, deep: struct<day: date>>, a array<struct<n: int>>, m map<string, int>"
        self.value = handle.getValueState("value", f"{fields}, {nested}, e boolean")
        self.list = handle.getListState("list", f"{nested}, {fields}")
        self.map = handle.getMapState("map", "s string, at timestamp, r struct<n: int, t: string>", nested)

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        import numpy as np
        import pandas as pd

        n = len(list(rows))
        at = datetime(2024, 3, 31, 12, 0, 0, n)  # noqa: DTZ001 - as Spark gives instants of states
        elsewhere = at.replace(tzinfo=timezone(timedelta(hours=n)))
        before = [self.value.get(), list(self.list.get()), sorted(map(repr, self.map.iterator()))]
        plain = (np.int32(n), n / 7, f"é{n}", Decimal(n) / 8, bytes([n]), elsewhere, at.date(), at)
        given = (
            np.int64(n),
            np.float64(n / 4),
            np.str_("n"),
            Decimal(n),
            bytearray(b"b"),
            pd.Timestamp(at),
            at.date(),
            at,
        )
        nested = (Row(at=at, deep=Row(day=at.date())), [(n,), Row(n=None)], {"a": n, "b": None})
        other: Any = ((elsewhere, None), [], {})
        self.value.update((*plain, *nested, np.bool_(n % 2)))
        now = self.value.get()
        self.list.appendList([(*nested, *given), (*other, *plain)])
        self.list.appendValue((None, None, None, *(None,) * 8))
        self.map.updateValue((f"k{n % 2}", elsewhere, (n % 3, None)), nested)
        self.map.updateValue((None, at, Row(n=None, t="t")), other)
        found = self.map.getValue(("k0", elsewhere, (0, None))), self.map.containsKey((None, at, (None, "t")))
        yield Row(told=f"{key!r} {before!r} {now!r} {found!r}")
        if n % 3 == 0:
            self.value.update((None,) * 12)
            self.list.clear()
            self.map.removeKey((None, at, (None, "t")))


def show_frame(frame: Any) -> str:  # noqa: ANN401
    """Types and values of a frame, as text."""
    kinds = {name: str(kind) for name, kind in frame.dtypes.items()}
    types = [sorted({type(value).__name__ for value in frame[name]}) for name in frame.columns]
    return f"{kinds} {types} {list(frame.index)} {sorted(map(repr, frame.itertuples(index=False, name=None)))}"
