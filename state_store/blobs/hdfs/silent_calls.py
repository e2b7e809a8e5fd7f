"""Call a client that has no timeouts of its own. Each call runs in a thread that may be abandoned."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from pyspark_ckpt.state_store.blobs.base.retries import LONGEST_TRY_S, get_left_of_try_s

T = TypeVar("T")

EXIT_S = 5.0
"""How long the end of the process waits for running calls."""


class DaemonThreads:
    """Runs each call in a thread of its own, which keeps the process alive for EXIT_S at most.

    A call that returns while the interpreter ends would end the process by SIGABRT: Python stops the thread by
    unwinding it, which the client's code, in Rust, does not allow.
    """

    def __init__(self, name: str) -> None:
        """Name the threads."""
        self._name = name
        self._running: set[Future[Any]] = set()
        atexit.register(self._await_running)

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
            finally:
                self._running.discard(future)

        self._running.add(future)
        threading.Thread(target=run, name=self._name, daemon=True).start()
        return future

    def _await_running(self) -> None:
        wait(list(self._running), EXIT_S)


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
