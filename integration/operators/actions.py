"""The ways in which a foreachBatch function can run an action on its frame."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.util import inheritable_thread_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

_POOL = ThreadPoolExecutor(4)


def _in_a_plain_thread(_frame: DataFrame, action: Callable[[], Any]) -> None:
    _POOL.submit(action).result()


def _in_an_inheritable_thread(frame: DataFrame, action: Callable[[], Any]) -> None:
    done: Future[Any] = Future()

    def act() -> None:
        try:
            done.set_result(action())
        except Exception as problem:  # noqa: BLE001 - raised where the result is awaited
            done.set_exception(problem)

    threading.Thread(target=inheritable_thread_target(frame.sparkSession)(act)).start()
    done.result()


class _Supplier:
    """Runs Python code in a thread of a pool of the JVM."""

    class Java:
        """The interface of which it is one."""

        implements: ClassVar = ["java.util.function.Supplier"]

    def __init__(self, action: Callable[[], Any]) -> None:
        self._action = action

    def get(self) -> None:
        """Act. py4j runs the calls of a callback in the thread that has called back."""
        self._action()


def _in_a_future(frame: DataFrame, action: Callable[[], Any]) -> None:
    """Act in the pool in which Scala's futures run, whose threads have local properties of queries before."""
    gateway: Any = frame.sparkSession.sparkContext._gateway
    gateway.jvm.java.util.concurrent.CompletableFuture.supplyAsync(_Supplier(action)).join()


WAYS: dict[str, Callable[[DataFrame, Callable[[], Any]], None]] = {
    "direct": lambda _frame, action: action(),
    "thread": _in_a_plain_thread,
    "inheritable": _in_an_inheritable_thread,
    "future": _in_a_future,
}


def collect(way: str, frame: DataFrame) -> list[Any]:
    """Return the rows of a frame, collected in one of ``WAYS``."""
    found: list[Any] = []
    WAYS[way](frame, lambda: found.extend(frame.collect()))
    return found


def collect_at_once(frame: DataFrame, times: int) -> list[list[Any]]:
    """Return the rows of a frame as each of several actions that run at the same time has collected them."""
    barrier = threading.Barrier(times)

    def act(_: int) -> list[Any]:
        barrier.wait()
        return frame.collect()

    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(act, range(times)))
