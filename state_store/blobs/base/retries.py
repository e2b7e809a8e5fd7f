"""How long to wait for a place that does not answer: one policy for all kinds of places.

A request whose failure may pass is repeated until ``timeout_s`` is over, counted from its first try. Pauses grow, and
each has a random length, so that many writers do not come back at the same instant. No request uses up the time of
another. One try never takes all of the time: a connection that died silently costs the first try, not the request. The
log says once that it waits for a place, and once that the place answers again.

After ``stop_waiting``, which an interrupted command calls, threads try once what they have begun, and repeat nothing.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import NoReturn, Protocol, TypeVar, runtime_checkable

from typing_extensions import Self

from pyspark_ckpt.state_store.blobs.base.place import BlobPlace
from pyspark_ckpt.state_store.errors import Outcome, StorageError
from pyspark_ckpt.state_store.log import LOGGER

TIMEOUT_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
FIRST_TRY_SHARE, LONGEST_TRY_SHARE = 1 / 6, 1 / 4
"""The shares of the timeout that the first try and any other try may take. A try that begins as an outage ends may get
no answer, and there must be time for another after it."""
SHORTEST_TRY_S, LONGEST_TRY_S = 1.0, 60.0

T = TypeVar("T")
_log = logging.getLogger(f"{LOGGER}.places")
_trying = threading.local()


class _Process:
    """This process. A plain attribute, because a forked process might find a lock held."""

    is_ending = False


class RetriesExhaustedError(Exception):
    """A request failed until its timeout was over, or until the process was asked to stop."""

    def __init__(self, problem: Exception, after_s: float, why: str) -> None:
        """Keep the ``problem`` of the last try, and ``why`` it was the last."""
        super().__init__(str(problem))
        self.problem = problem
        self.after_s = after_s
        self.why = why


def fail_exhausted(
    verb: str, where: object, exhausted: RetriesExhaustedError, last: str, outcome: Outcome, hint: str
) -> NoReturn:
    """Raise StorageError for a request whose retries are exhausted. ``last`` describes the failure of its last try."""
    raise StorageError(
        f"Could not {verb} {where}: {last}. It was tried for {exhausted.after_s:.0f} s ({exhausted.why}).",
        outcome=outcome,
        hint=hint,
        waited_s=exhausted.after_s,
    ) from exhausted


class _Outages:
    """The places that do not answer now, so that the log reports each outage once for all waiting requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._waiting: Counter[str] = Counter()
        self._failing: dict[str, tuple[float, float]] = {}
        """Since when a place has not answered, and when that was last seen. Kept also while no request waits."""

    def note_failure(self, place: str, began: float, timeout_s: float, problem: Exception, *, is_first: bool) -> None:
        """Note that a try that began at ``began`` failed. Ignore it if it began before the place answered again."""
        with self._lock:
            self._waiting[place] += is_first
            if began <= self._ended.get(place, 0.0):
                return
            self._failing[place] = self._failing.get(place, (began, began))[0], time.monotonic()
            if place in self._since or _Process.is_ending:
                return
            self._since[place] = began
        _log.warning(
            "%s has not answered since %s; waiting for up to %.0f s: %s",
            place,
            time.strftime("%H:%M:%S", time.localtime(time.time() - (time.monotonic() - began))),
            timeout_s,
            str(problem).partition("\n")[0],
        )

    def begin_of_wait(self, place: str, asked: float | None) -> float:
        """Return when a wait began: now, or, if the request was asked for earlier, when it met the present outage."""
        now = time.monotonic()
        since, seen = self._failing.get(place, (None, 0.0))
        asked = getattr(_trying, "asked", None) if asked is None else asked
        if since is None or asked is None or now - seen > LONGEST_TRY_S:
            return now
        return min(now, max(since, asked))

    def note_answer(self, place: str, began: float) -> None:
        """Note that a try that began at ``began`` succeeded. Costs nothing if the place was not failing."""
        if place not in self._failing and place not in self._since:
            return
        with self._lock:
            if began > self._failing.get(place, (began, began))[0]:
                self._failing.pop(place, None)
            since = self._since.get(place)
            if since is None or began <= since:
                return
            now = self._ended[place] = time.monotonic()
            del self._since[place]
        _log.warning("%s answers again, after %.1f s", place, now - since)

    def note_end(self, place: str) -> None:
        """Note that a failed request is no longer repeated. After the last one, no request waits for the place."""
        with self._lock:
            self._waiting[place] -= 1
            if self._waiting[place] <= 0:
                del self._waiting[place]
                self._since.pop(place, None)


_outages = _Outages()


def _count_nothing(_waited_s: float) -> None:
    """Do not count waits."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long to wait for a place that does not answer.

    ``timeout_s``: how long a place may fail to answer (0: nothing is repeated). ``waited`` is called with the time
    taken by each repeated request. ``stopping`` ends all waiting.
    """

    timeout_s: float = TIMEOUT_S
    waited: Callable[[float], None] = _count_nothing
    stopping: threading.Event = field(default_factory=threading.Event)

    def repeat(
        self,
        place: str,
        request: Callable[[], T],
        may_pass: Callable[[Exception], bool],
        *,
        work_s: float = 0.0,
        asked: float | None = None,
    ) -> T:
        """Return the result of ``request``, which is repeated until it succeeds or fails in a way that does not pass.

        ``place`` is its name in the log. ``work_s``: how long the place may need to work on the request. ``asked``:
        when the request was queued, if it was; an outage since then counts. ``request`` itself must check for the
        effects of earlier tries. Raises RetriesExhaustedError after about ``timeout_s``, and any lasting failure.
        """
        started = _outages.begin_of_wait(place, asked)
        deadline = started + self.timeout_s + work_s
        tries = 0
        try:
            while True:
                began = time.monotonic()
                is_first_again = tries == 0 and getattr(_trying, "again", False)
                try:
                    with limit(self._limit_s(tries, math.inf if is_first_again else deadline - began, work_s)):
                        result = request()
                except Exception as problem:
                    if not may_pass(problem):
                        raise
                    tries += 1
                    _outages.note_failure(place, began, self.timeout_s, problem, is_first=tries == 1)
                    self._pause(problem, tries, started, deadline)
                else:
                    _outages.note_answer(place, began)
                    return result
        finally:
            if tries:
                self.waited(time.monotonic() - started)
                _outages.note_end(place)

    @property
    def first_try_s(self) -> float:
        """How long the first try of a request may take."""
        return self._limit_s(0, self.timeout_s, 0.0)

    @property
    def _is_stopping(self) -> bool:
        return _Process.is_ending or self.stopping.is_set()

    def _limit_s(self, tries: int, left_s: float, work_s: float) -> float:
        if self.timeout_s <= 0:
            return LONGEST_TRY_S + work_s
        share_s = min(LONGEST_TRY_S, self.timeout_s * (LONGEST_TRY_SHARE if tries else FIRST_TRY_SHARE)) + work_s
        return max(SHORTEST_TRY_S, min(share_s, left_s))

    def _pause(self, problem: Exception, tries: int, started: float, deadline: float) -> None:
        left_s = deadline - time.monotonic()
        if left_s > 0 and self.timeout_s > 0:
            longest_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(tries - 1, 16))
            self.stopping.wait(min(left_s, random.uniform(0, longest_s)))  # noqa: S311 - no secret
            if not self._is_stopping:
                return
        why = "the process was asked to stop" if self._is_stopping else f"placeTimeout is {self.timeout_s:g} s"
        raise RetriesExhaustedError(problem, time.monotonic() - started, why) from problem


def stop_waiting() -> None:
    """Stop all threads of this process from waiting for places, because the process ends."""
    _Process.is_ending = True


@contextmanager
def limit(limit_s: float) -> Iterator[None]:
    """Limit the total time of the requests in the block, as far as they use ``get_left_of_try_s``."""
    before = getattr(_trying, "until", None)
    _trying.until = time.monotonic() + limit_s
    try:
        yield
    finally:
        _trying.until = before


@contextmanager
def ask_now(*, again: bool = False) -> Iterator[None]:
    """Count the requests in the block as asked for now, even if they first wait for others in this process.

    ``again``: they were requested before, and failed. A place that has not answered since does not get the whole
    timeout again: it is tried once, and then waited for only during the rest of the timeout.
    """
    _trying.asked, _trying.again = 0.0 if again else time.monotonic(), again
    try:
        yield
    finally:
        _trying.asked, _trying.again = None, False


def get_left_of_try_s(most_s: float) -> float:
    """Return how long the next wait of the current try may take: at most ``most_s``."""
    until = getattr(_trying, "until", None)
    return most_s if until is None else max(0.1, min(most_s, until - time.monotonic()))


@runtime_checkable
class CanRetry(Protocol):
    """A place that repeats its requests."""

    def retrying(self, retries: RetryPolicy) -> BlobPlace:
        """Return the same place, with requests repeated according to ``retries``."""
        ...


class Retries:
    """Makes a place one that CanRetry: it repeats its requests according to its ``retries``."""

    retries: RetryPolicy

    def retrying(self, retries: RetryPolicy) -> Self:
        """Return the same place, with requests repeated according to ``retries``."""
        place = copy(self)
        place.retries = retries
        return place


def with_retries(place: BlobPlace, retries: RetryPolicy) -> BlobPlace:
    """Return the same place with these ``retries``. A place that never waits is returned unchanged."""
    return place.retrying(retries) if isinstance(place, CanRetry) else place
