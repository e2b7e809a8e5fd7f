"""Answers that take long: each is computed once at a time for all callers, and kept for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as WaitedTooLongError
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeAlias, TypeVar

from pyspark_ckpt.state_store.errors import LifecycleError

T = TypeVar("T")
Progress: TypeAlias = Callable[[int, int], None]
Compute: TypeAlias = Callable[[Progress], T]
WORKERS = 4
"""How many answers about one checkpoint are computed at a time."""
FAILED_S = 2.0
"""How long a failure is repeated to later callers."""
CLOSED = "The web page is closed."


@dataclass(frozen=True)
class Recalled(Generic[T]):
    """An answer, as far as it is known. ``value``: None if there is none yet. ``age_s``: its age.

    ``key``: the question. ``done``, ``total``: the progress of a newer answer; both 0 if none is being computed.
    """

    value: T | None
    key: object
    age_s: float
    done: int = 0
    total: int = 0

    @property
    def is_under_way(self) -> bool:
        """Whether a newer answer is being computed."""
        return self.total > 0


def make_pool() -> ThreadPoolExecutor:
    """Return the threads that compute answers about one checkpoint: a slow place delays no other."""
    return ThreadPoolExecutor(WORKERS, thread_name_prefix="pages")


class Recollection(Generic[T]):
    """One answer that changes with a key and with time. Safe to use from many threads."""

    def __init__(self, pool: ThreadPoolExecutor, kept_s: float) -> None:
        """Compute in ``pool``. An answer older than ``kept_s`` is computed again on request."""
        self._pool, self._kept_s = pool, kept_s
        self._lock = threading.Lock()
        self._value: T | None = None
        self._key: object = None
        self._at_s = 0.0
        self._failure: tuple[object, float, BaseException, TracebackType | None] | None = None
        self._running: tuple[object, Future[T]] | None = None
        self._progress = (0, 1)

    def recall(self, key: object, compute: Compute[T], wait_s: float) -> Recalled[T]:
        """Return the answer for ``key``; if that takes longer than ``wait_s``, an older one or none.

        Raises what ``compute`` raises, to all waiting callers and for a moment afterwards, and LifecycleError (the page
        was closed).
        """
        with self._lock:
            now_s = time.monotonic()
            if self._value is not None and self._key == key and now_s - self._at_s < self._kept_s:
                return Recalled(self._value, key, now_s - self._at_s)
            if self._failure is not None and self._failure[0] == key and now_s - self._failure[1] < FAILED_S:
                raise self._failure[2].with_traceback(self._failure[3])
            if self._running is None:
                self._progress = (0, 1)
                self._running = key, self._submit(key, compute)
            running_key, future = self._running
        try:
            value = future.result(wait_s)
        except WaitedTooLongError:  # not yet the builtin TimeoutError in Python 3.10
            return self._describe()
        except CancelledError as problem:
            raise LifecycleError(CLOSED) from problem
        if running_key == key:
            return Recalled(value, key, 0.0)
        return self._describe()

    def _submit(self, key: object, compute: Compute[T]) -> Future[T]:
        try:
            return self._pool.submit(self._work, key, compute)
        except RuntimeError as problem:  # the pool was shut down
            raise LifecycleError(CLOSED) from problem

    def _note(self, done: int, total: int) -> None:
        self._progress = done, max(total, 1)

    def _work(self, key: object, compute: Compute[T]) -> T:
        """Compute an answer, in a thread of the pool, and keep it."""
        try:
            value = compute(self._note)
        except BaseException as problem:
            with self._lock:
                self._running, self._failure = None, (key, time.monotonic(), problem, problem.__traceback__)
            raise
        with self._lock:
            self._running, self._failure = None, None
            self._value, self._key, self._at_s = value, key, time.monotonic()
        return value

    def _describe(self) -> Recalled[T]:
        with self._lock:
            done, total = self._progress if self._running is not None else (0, 0)
            age_s = time.monotonic() - self._at_s if self._value is not None else 0.0
            return Recalled(self._value, self._key, age_s, done, total)
