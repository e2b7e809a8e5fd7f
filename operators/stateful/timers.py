"""The timers of a StatefulProcessor: those of one key can be listed, and a handler's own come in the next batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class KeyTimers:
    """Timers of the current key, kept twice: in time order, to fire, and by key, to be listed.

    A timer that a handler of timers registers for the past fires in the next batch, as in Spark. It is registered for
    the next millisecond; its namespace is the instant that it was set to.
    """

    def __init__(self, timers: Any, index: Any, now_ms: int) -> None:
        """``timers``, ``index``: the bound Timers, and a map of each timer's instant to the one at which it fires."""
        self._timers = timers
        self._index = index
        self._next_ms = now_ms + 1
        self.is_firing = False

    def register(self, at_ms: int) -> None:
        """Register a timer, unless there is one."""
        if self._index.contains(at_ms):
            return
        fires_ms = max(at_ms, self._next_ms) if self.is_firing else at_ms
        self._timers.register(fires_ms, "" if fires_ms == at_ms else str(at_ms))
        self._index.put(at_ms, fires_ms)

    def delete(self, at_ms: int) -> None:
        """Delete a timer; no error if there is none."""
        fires_ms = self._index.get(at_ms)
        if fires_ms is not None:
            self._timers.delete(fires_ms, "" if fires_ms == at_ms else str(at_ms))
            self._index.remove(at_ms)

    def list_all(self) -> Iterator[int]:
        """Yield the instants of all timers in order, of the moment at which the first one is taken."""
        yield from self._index.keys()


def set_ms(name: str, at_ms: int) -> int:
    """Return the instant to which a timer was set that fires. ``name``: its namespace."""
    return int(name) if name else at_ms
