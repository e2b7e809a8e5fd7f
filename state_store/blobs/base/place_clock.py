"""The time of a place, which stamps its objects. No other clock can tell how old an object is.

A host's clock may be minutes or hours off. The place is therefore asked for the time, but rarely: in between, its
answer is advanced by a local clock that nobody sets.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from pyspark_ckpt.state_store.blobs.base.place import BlobPlace
from pyspark_ckpt.state_store.errors import StorageError

KEPT_S = 3600.0
"""How long the answer of a place is used."""
SLOWEST_S = 10.0
"""A slower answer is not used, because it may be as old as the question."""
STEP_S = 1.0
"""If the advances of two clocks of a host differ by more than this, one of them was set."""
TICK_S = 0.02
"""Two ticks of the clock by which file systems stamp files; it ticks at least a hundred times a second."""
ATTEMPTS = 3

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@runtime_checkable
class TellsTime(Protocol):
    """A place that can be asked for its time without writing an object."""

    def now_s(self) -> float:
        """Return the time that the place would stamp on an object now, to a second (Unix time). Raises StorageError."""
        ...


@runtime_checkable
class ShowsTime(Protocol):
    """A place whose answers show its time, so that nothing is written to learn it."""

    def read_shown_s(self) -> float:
        """Return the time of the place, to a second (Unix time). Raises StorageError."""
        ...


@runtime_checkable
class IsOfService(Protocol):
    """A place that shares its clock with other places."""

    @property
    def service(self) -> str:
        """The source of the stamps of the place's objects, such as a bucket at an endpoint or a name node."""
        ...


def boot_s() -> float:
    """Return the seconds since this machine started, including sleep. Nobody sets this clock."""
    return time.clock_gettime(_BOOT_CLOCK)


def ask_time(place: BlobPlace) -> float:
    """Return the time that ``place`` stamps on what is written now (Unix time). Raises StorageError."""
    if isinstance(place, TellsTime):
        return place.now_s()
    for _ in range(ATTEMPTS):
        name = f"clock-{uuid.uuid4().hex}"
        place.put(name, b"")
        found = [blob for blob in place.list(prefix=name) if blob.name == name]
        place.delete(name)
        if found:
            return found[0].modified_s
    raise StorageError(f"The time of {place.url} is not known: an object that was just written there is not listed.")


def find_service(place: BlobPlace) -> str:
    """Return the source of the stamps of ``place``'s objects. Places of one service share its clock."""
    return place.service if isinstance(place, IsOfService) else place.url


def read_shown_time(place: BlobPlace) -> float:
    """Return the time of ``place`` without a write, or the time of this host if the place does not show its own."""
    return place.read_shown_s() if isinstance(place, ShowsTime) else time.time()


class PlaceTimes:
    """The times of all places of a process. For each service, one place is asked. Safe to use from many threads."""

    def __init__(self, clock: Callable[[], float] = boot_s) -> None:
        """Advance times by ``clock``."""
        self._clock = clock
        self._told: dict[str, _Told] = {}

    def make_clock(self, place: BlobPlace) -> Callable[[], float]:
        """Return a function that tells the time of ``place``. Makes no request."""
        return PlaceClock(place, self._clock, self._told.setdefault(find_service(place), _Told())).now_s


class ShownTimes(PlaceTimes):
    """Times of places to which nothing may be written."""

    def make_clock(self, place: BlobPlace) -> Callable[[], float]:
        """Return a function that tells the time of ``place`` and writes nothing there."""
        return lambda: read_shown_time(place)


class _Told:
    """When a place was asked for its time, by two clocks, and how far it is ahead of the first clock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked: tuple[float, float] | None = None
        self.ahead_s = 0.0


class PlaceClock:
    """The time of one place. Never more than ``SLOWEST_S`` ahead of it; safe to use from many threads."""

    def __init__(self, place: BlobPlace, clock: Callable[[], float] = boot_s, told: _Told | None = None) -> None:
        """Advance the time of ``place`` by ``clock``. If that clock was set or stood still, the place is asked again.

        ``told``: the known time of its service, shared with other clocks.
        """
        self._place = place
        self._clock = clock
        self._told = told or _Told()

    def now_s(self) -> float:
        """Return the time of the place (Unix time). Raises StorageError."""
        told = self._told
        with told.lock:
            if not self._is_current():
                self._ask()
            return self._clock() + told.ahead_s

    def _is_current(self) -> bool:
        asked = self._told.asked
        if asked is None:
            return False
        by_clock, by_boot = self._clock() - asked[0], boot_s() - asked[1]
        return 0 <= by_boot <= KEPT_S and abs(by_clock - by_boot) <= STEP_S

    def _ask(self) -> None:
        for _ in range(ATTEMPTS):
            asked = self._clock(), boot_s()
            told_s = ask_time(self._place)
            if boot_s() - asked[1] <= SLOWEST_S:
                self._told.asked, self._told.ahead_s = asked, told_s + TICK_S - asked[0]
                return
        raise StorageError(f"{self._place.url} took more than {SLOWEST_S:.0f} s to tell its time, {ATTEMPTS} times.")
