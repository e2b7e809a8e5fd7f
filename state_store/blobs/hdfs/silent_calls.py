"""Call a client that has no timeouts of its own. Each call runs in a thread that may be abandoned."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from pyspark_ckpt.state_store.blobs.base.retries import LONGEST_TRY_S, get_left_of_try_s

T = TypeVar("T")


class DaemonThreads:
    """Runs each call in a thread of its own, which does not keep the process alive."""

    def __init__(self, name: str) -> None:
        """Name the threads."""
        self._name = name

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Begin a call."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                result = call()
            except BaseException as problem:  # noqa: BLE001 - the waiting thread gets it
                future.set_exception(problem)
            else:
                future.set_result(result)

        threading.Thread(target=run, name=self._name, daemon=True).start()
        return future


_threads = DaemonThreads("hdfs-call")


def within_try(call: Callable[[], T]) -> T:
    """Return the result of a call. Raises TimeoutError (none within the current try); the call then runs unattended."""
    limit_s = get_left_of_try_s(LONGEST_TRY_S)
    waiting = _threads.submit(call)
    if not _is_done(waiting, limit_s):
        raise TimeoutError(f"no answer within {limit_s:.1f} s")
    return waiting.result()


def _is_done(waiting: Future[T], limit_s: float) -> bool:
    done = threading.Event()
    waiting.add_done_callback(lambda _: done.set())
    return done.wait(limit_s)
