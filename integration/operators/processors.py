"""StatefulProcessors with all kinds of states and timers. The order of keys does not change what they put out."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        StatefulProcessorHandle,
        TimerValues,
    )

OUT = "user int, what string, total bigint, ids string, words string"
_QUIET_MS = 9 * 60_000

# Methods have the names and the arguments that Spark gives them.
# ruff: noqa: ANN401, N802, N803


class Visits(StatefulProcessor):
    """A value of two columns, a list and a map of a user, which a timer of event time clears after a quiet time."""

    ttl_ms: int | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare a state of each kind."""
        self.handle = handle
        self.total = handle.getValueState("total", "rows bigint, last timestamp", self.ttl_ms)
        self.ids = handle.getListState("ids", "id bigint", self.ttl_ms)
        self.words = handle.getMapState("words", "word string", "times bigint", self.ttl_ms)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:
        """Put what has come into every state."""
        yield self.show(key, "rows", self.take(sorted(rows, key=lambda row: row.id), timerValues))

    def handleExpiredTimer(
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: ARG002 - Spark's signature
        expiredTimerInfo: ExpiredTimerInfo,
    ) -> Iterator[Any]:
        """Forget the user."""
        yield self.show(key, f"fired at {expiredTimerInfo.getExpiryTimeInMs()}", 0)
        for state in (self.total, self.ids, self.words):
            state.clear()

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:  # noqa: ARG002
        """Begin with a list of one."""
        self.ids.put([(initialState.id,)])

    def close(self) -> None:
        """Nothing is open."""

    def take(self, rows: list[Any], timer_values: TimerValues) -> int:
        """Put rows into every state; return how many there ever were."""
        before = self.total.get() or (0, None)
        self.total.update((before[0] + len(rows), max((row.at for row in rows), default=before[1])))
        if len(rows) > 3:
            self.ids.put([(row.id,) for row in rows])
        else:
            self.ids.appendList([(row.id,) for row in rows])
        for row in rows:
            word = (row.word or "nothing",)
            if self.words.containsKey(word) and row.id % 7 == 0:
                self.words.removeKey(word)
            else:
                self.words.updateValue(word, ((self.words.getValue(word) or (0,))[0] + 1,))
        self.set_timer(timer_values)
        return int(before[0] + len(rows))

    def set_timer(self, timer_values: TimerValues) -> None:
        """Have one timer, a quiet time after the watermark."""
        for old in list(self.handle.listTimers()):
            self.handle.deleteTimer(old)
        self.handle.registerTimer(timer_values.getCurrentWatermarkInMs() + _QUIET_MS)

    def show(self, key: tuple[Any, ...], what: str, total: int) -> Row:
        """Return what the states hold."""
        ids = str(sorted(each[0] for each in self.ids.get()))
        words = str(sorted((word[0], times[0]) for word, times in self.words.iterator()))
        user = None if key[0] is None or key[0] != key[0] else int(key[0])
        return Row(user=user, what=what, total=total, ids=ids, words=words)


class Frames(Visits):
    """The same for frames of pandas."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:
        """Put what has come into every state."""
        import pandas as pd

        found = pd.concat(list(rows)).sort_values("id").replace({float("nan"): None})
        yield _frame(self.show(key, "rows", self.take(list(found.itertuples(index=False)), timerValues)))

    def handleExpiredTimer(self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo) -> Any:
        """Forget the user."""
        for row in super().handleExpiredTimer(key, timerValues, expiredTimerInfo):
            yield _frame(row)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:  # noqa: ARG002
        """Begin with a list of one."""
        self.ids.put([(int(initialState["id"].iloc[0]),)])


class Forgetful(Visits):
    """States whose values live for a millisecond, so no batch sees what an earlier one has written."""

    ttl_ms = 1

    def set_timer(self, timer_values: TimerValues) -> None:
        """Have a timer of processing time, which fires in the next batch."""
        self.handle.registerTimer(timer_values.getCurrentProcessingTimeInMs() + 1)

    def handleExpiredTimer(
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: ARG002 - Spark's signature
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: ARG002
    ) -> Iterator[Any]:
        """Say that the timer has fired: its time is another in each run."""
        yield self.show(key, "fired", 0)


class Durable(Forgetful):
    """States with a time to live that no test reaches."""

    ttl_ms = 86_400_000


class Evolving(StatefulProcessor):
    """States whose values have the given columns; what they were before the batch is put out."""

    def __init__(self, schema: str, other_values: tuple[Any, ...]) -> None:
        self.schema = schema
        self.other_values = other_values

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare a state of each kind, one with a time to live."""
        self.last = handle.getValueState("last", self.schema)
        self.all = handle.getListState("all", self.schema)
        self.words = handle.getMapState("words", "word string", self.schema, 86_400_000)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: ARG002
        """Show what was there, and put the newest row into each state."""
        newest = max(rows, key=lambda row: row.id)
        words = sorted(map(repr, self.words.iterator()))
        yield Row(user=key[0], what=f"{self.last.get()} {sorted(map(repr, self.all.get()))} {words}")
        value = (newest.id, *self.other_values)
        self.last.update(value)
        self.all.appendValue(value)
        self.words.updateValue((newest.word or "nothing",), value)

    def close(self) -> None:
        """Nothing is open."""


def _frame(row: Row) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([row.asDict()]).astype({"user": "Int32"})


EVERY_TYPE = (
    "c int, d bigint, e float, f double, g decimal(9,2), h decimal(38,10), i date, j timestamp, "
    "k timestamp_ntz, l boolean, m binary, n string, o array<string>, p array<struct<x: int, y: array<double>>>, "
    "q map<string, struct<z: date>>, r struct<s: struct<t: decimal(20,3)>>"
)


class EveryType(StatefulProcessor):
    """A value, a list and a map with a column of each type that Spark has Avro for; each third row has nulls."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare a state of each kind."""
        self.one = handle.getValueState("one", EVERY_TYPE)
        self.all = handle.getListState("all", EVERY_TYPE)
        self.by_word = handle.getMapState("words", "word string, day date", EVERY_TYPE)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: ARG002
        """Keep a row of each input, and show what was there before."""
        numbers = sorted(row.number for row in rows)
        shown = [self.one.get(), sorted(map(repr, self.all.get()))]
        for number in numbers:
            value = _make_every_type(number)
            self.one.update(value)
            self.all.appendValue(value)
            self.by_word.updateValue((f"w{number % 4}", _DAY), value)
        yield Row(user=key[0], shown=repr(shown))

    def close(self) -> None:
        """Nothing is open."""


_DAY = dt.date(1969, 12, 31)


def _make_every_type(number: int) -> tuple[Any, ...]:
    if number % 3 == 0:
        return (None,) * 16
    at = dt.datetime(1999, 12, 31, 23, 59, 59, number)  # noqa: DTZ001 - Spark's sessions run in UTC
    sign = (-1) ** number
    return (
        sign * number * 1000,
        sign * number * 10**12,
        sign * 1.5,
        sign * 1e300,
        Decimal(sign * number).scaleb(-2),
        Decimal(f"{sign * 7}654321098765432109876543.0123456789"),
        _DAY,
        at,
        at,
        number % 2 == 0,
        bytes([number % 256] * (number % 5)),
        "é𝄞" * number,
        ["", f"{number}"],
        [(number, [0.5, -0.0]), (None, [])],
        {"k": (_DAY,), f"k{number}": (None,)},
        ((Decimal("-1.125"),),),
    )


class Total(StatefulProcessor):
    """Adds up the values of a key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the only state."""
        self.total = handle.getValueState("total", "total bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: ARG002
        """Tell the sum."""
        total = (self.total.get() or (0,))[0] + sum(row.value for row in rows)
        self.total.update((total,))
        yield Row(k=key[0], total=total, batch=-1)

    def close(self) -> None:
        """Nothing is open."""
