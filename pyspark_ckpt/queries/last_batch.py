"""The last batch of a query: it is committed, no other is planned, and the query ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from pyspark_ckpt.queries.handles import find_execution
from pyspark_ckpt.state_store.extras import require_extra, require_jar

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_S = 0.02


def let_end(
    query: StreamingQuery, timeout_s: float, what: str, show: Callable[[float], None] = lambda _waited_s: None
) -> bool:
    """Let the running batch of a query commit, and plan no other. Return whether it has ended within ``timeout_s``.

    If so, the query has ended or waits for its next trigger, and may safely be stopped. Otherwise it still runs its
    batch and ends after it, unless ``go_on`` is called. ``what`` needs PySpark and the jar. ``show`` is called with the
    seconds waited so far. Raises InvalidInputError (a session without the jar), ProcessError.
    """
    execution = find_execution(query)
    _find_last_batch(what).announce(execution)
    thread = execution.queryExecutionThread()
    began, pause = time.monotonic(), threading.Event()
    while thread.isAlive() and not _waits_for_trigger(thread):
        waited_s = time.monotonic() - began
        if waited_s >= timeout_s:
            return False
        show(waited_s)
        pause.wait(_LOOK_S)
    return True


def go_on(query: StreamingQuery, what: str) -> None:
    """Let a query that was told to end run on. If it has already noticed that it should end, it still ends."""
    last_batch = _find_last_batch(what)
    require_jar(is_there=callable(getattr(last_batch, "withdraw", None)))
    last_batch.withdraw(find_execution(query))


def _find_last_batch(what: str) -> Any:  # noqa: ANN401 - an object of the JVM
    require_extra("pyspark", what)
    from pyspark import SparkContext  # noqa: PLC0415 - see the docstring of the package

    found = cast("Any", SparkContext._jvm).org.apache.spark.sql.ckpt.plan.batches.LastBatch  # noqa: SLF001
    require_jar(is_there=callable(getattr(found, "announce", None)))  # py4j takes a class it lacks for a package
    return found


def _waits_for_trigger(thread: Any) -> bool:  # noqa: ANN401 - an object of the JVM
    """Whether a query's thread waits for its trigger, perhaps for long. A thread in a batch ends after that batch."""
    calls = [(frame.getClassName().rpartition(".")[2], frame.getMethodName()) for frame in thread.getStackTrace()]
    return (("SystemClock", "waitTillTime"), ("ProcessingTimeExecutor", "execute")) in pairwise(calls)
