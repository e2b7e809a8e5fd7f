"""Which tasks are under way that may commit a version, so that those who gather commits know for whom to wait."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

MOST_WAIT_S = 0.02
WAIT_SHARE = 0.25
"""How long one commit waits for others, as a share of the time of a request."""


class WriteTimes(Protocol):
    """What a process has measured of its place."""

    @property
    def request_s(self) -> float:
        """How long a request takes."""
        ...

    def note_write(self, size_bytes: int, took_s: float) -> None:
        """Note that an object was written in ``took_s``."""
        ...


@contextmanager
def measure_write(times: WriteTimes, size_bytes: int) -> Iterator[None]:
    """Note how long the block takes, which writes an object of so many bytes. A failure is not noted."""
    began = time.monotonic()
    yield
    times.note_write(size_bytes, time.monotonic() - began)


class OpenTasks:
    """Tasks of one query with open transactions. A caller of the methods that ask holds ``changed``."""

    def __init__(self) -> None:
        """Know of none."""
        self.changed = threading.Condition(threading.Lock())
        self._open: Counter[tuple[int, int]] = Counter()

    def begin(self, version: int, partition: int) -> None:
        """Note that a transaction that may make ``version`` has begun."""
        with self.changed:
            self._open[version, partition] += 1

    def end(self, version: int, partition: int) -> None:
        """Note that such a transaction has ended."""
        with self.changed:
            self._open[version, partition] -= 1
            if not self._open[version, partition]:
                del self._open[version, partition]
                self.changed.notify_all()

    def are_open(self, version: int, but_for: Collection[int] = ()) -> bool:
        """Return whether tasks may still commit ``version``, other than those of some partitions."""
        return any(other == version and partition not in but_for for other, partition in self._open)
