"""What a StatefulProcessor must see, on plain dicts: its states, their times to live, and its timers."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    ListState,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)
from typing_extensions import override

Key = tuple[Any, ...]


class Model:
    """A program and its state, batch by batch. ``time_mode``: in small letters."""

    def __init__(self, program: StatefulProcessor, time_mode: str) -> None:
        self._program = program
        self._time_mode = time_mode
        self.now_ms = 0
        self.key: Key = ()
        self.states: dict[str, dict[Key, Any]] = defaultdict(dict)
        self.timers: dict[Key, set[int]] = defaultdict(set)

    def run(self, rows: Mapping[Key, Sequence[Any]], now_ms: int, watermark_ms: int) -> list[Any]:
        """Process a batch: the rows of each key, then the timers that are due."""
        self.now_ms = now_ms
        program = copy.copy(self._program)
        program.init(ModelHandle(self))
        times = TimerValues(-1, -1) if self._time_mode == "none" else TimerValues(now_ms, watermark_ms)
        out: list[Any] = []
        for self.key, some in rows.items():
            out.extend(program.handleInputRows(self.key, iter(some), times))
        clock_ms = {"none": None, "processingtime": now_ms, "eventtime": watermark_ms}[self._time_mode]
        if clock_ms is not None:
            due = sorted((at, key) for key, of_key in self.timers.items() for at in of_key if at <= clock_ms)
            for at, self.key in due:
                out.extend(program.handleExpiredTimer(self.key, times, ExpiredTimerInfo(at)))
                self.timers[self.key].discard(at)
        program.close()
        return out


class ModelHandle(StatefulProcessorHandle):
    """Gives a program the states of a Model."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @override
    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return ModelValue(self._model, stateName, ttlDurationMs)

    @override
    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return ModelList(self._model, stateName, ttlDurationMs)

    @override
    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> Any:
        return ModelMap(self._model, stateName, ttlDurationMs)

    @override
    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._model.timers[self._model.key].add(expiryTimestampMs)

    @override
    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._model.timers[self._model.key].discard(expiryTimestampMs)

    @override
    def listTimers(self) -> Iterator[int]:
        return iter(sorted(self._model.timers[self._model.key]))


class _Entries:
    """Entries of the current key, each with the instant at which it expires."""

    def __init__(self, model: Model, name: str, ttl_ms: int | None) -> None:
        self._model = model
        self._of = model.states[name]
        self._ttl_ms = ttl_ms

    def get(self) -> list[tuple[Any, Any]]:
        """The entries that have not expired: names and values."""
        now_ms = self._model.now_ms
        return [(name, value) for name, value, until in self._of.get(self._model.key, ()) if now_ms < until]

    def set(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Keep these entries alone."""
        self._of[self._model.key] = [(name, value, self._until()) for name, value in entries]

    def add(self, name: Any, value: Any) -> None:  # noqa: ANN401
        """Append an entry."""
        self._of.setdefault(self._model.key, []).append((name, value, self._until()))

    def remove(self, name: Any) -> None:  # noqa: ANN401
        """Remove the entries with a name."""
        kept = [each for each in self._of.get(self._model.key, ()) if each[0] != name]
        self._of[self._model.key] = kept

    def _until(self) -> float:
        return float("inf") if not self._ttl_ms else self._model.now_ms + self._ttl_ms


class _Model:
    """What all state variables have."""

    def __init__(self, model: Model, name: str, ttl_ms: int | None) -> None:
        self._entries = _Entries(model, name, ttl_ms)

    def exists(self) -> bool:
        return bool(self._entries.get())

    def clear(self) -> None:
        self._entries.set([])


class ModelValue(_Model, ValueState):
    """A value."""

    @override
    def get(self) -> Any:
        return next((value for _, value in self._entries.get()), None)

    @override
    def update(self, newValue: Any) -> None:
        self._entries.set([(None, tuple(newValue))])


class ModelList(_Model, ListState):
    """A list."""

    @override
    def get(self) -> Any:
        return iter([value for _, value in self._entries.get()])

    @override
    def put(self, newState: Any) -> None:
        self._entries.set([(None, tuple(each)) for each in newState])

    @override
    def appendValue(self, newState: Any) -> None:
        self._entries.add(None, tuple(newState))

    @override
    def appendList(self, newState: Any) -> None:
        for each in newState:
            self.appendValue(each)


class ModelMap(_Model, MapState):
    """A map."""

    @override
    def getValue(self, key: Any) -> Any:
        return dict(self._entries.get()).get(tuple(key))

    @override
    def containsKey(self, key: Any) -> bool:
        return tuple(key) in dict(self._entries.get())

    @override
    def updateValue(self, key: Any, value: Any) -> None:
        self._entries.remove(tuple(key))
        self._entries.add(tuple(key), tuple(value))

    @override
    def iterator(self) -> Any:
        return iter(self._entries.get())

    @override
    def keys(self) -> Any:
        return iter([key for key, _ in self._entries.get()])

    @override
    def values(self) -> Any:
        return iter([value for _, value in self._entries.get()])

    @override
    def removeKey(self, key: Any) -> None:
        self._entries.remove(tuple(key))
