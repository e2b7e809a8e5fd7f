"""Wait until a query that was just started has committed its first batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark_ckpt.queries.handles import describe_failure, ends_by_itself
from pyspark_ckpt.queries.progress import end_s, has_run, read_last, read_progress
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.query.files import list_batches
from pyspark_ckpt.state_store.errors import LifecycleError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

IDLE_S = 10.0
"""How long a query must wait for data until it counts as having none for its first batch."""

_LOOK_S = 0.02
_WAITS = "Waiting for"
"""The beginning of a query's status while it has nothing to do."""


def is_committed(checkpoint: BlobPlace, batch: int) -> bool:
    """Return whether a batch, or a later one, is in the commit log. Raises StorageError."""
    return max(list_batches(checkpoint, "commits"), default=-1) >= batch


def await_first_commit(
    query: StreamingQuery,
    checkpoint: BlobPlace,
    batch: int,
    timeout_s: float | None,
    look: Callable[[float], bool],
) -> float | None:
    """Return when ``batch`` was committed, as Unix time; None if the query has no data for it.

    ``timeout_s``: None for as long as the query runs. ``look`` gets the seconds waited so far, and returns whether the
    batch is planned. A query that has waited for data counts as having none until a batch is planned, although it asks
    its sources again and again. Raises LifecycleError (the query has failed or was stopped, or the batch is not
    committed in time), StorageError.
    """
    began, idle_since, pause = time.monotonic(), None, threading.Event()
    while True:
        last, is_active, failure = read_last(query), query.isActive, query.exception()
        if last is not None and has_run(last) and last["batchId"] >= batch:
            return min((end_s(each) for each in read_progress(query) if _is_of(each, batch)), default=time.time())
        if failure is not None or not is_active:
            if is_committed(checkpoint, batch):
                return time.time()
            _require_end(query, checkpoint, failure)
            return None
        now = time.monotonic()
        if look(now - began):
            idle_since = None
        elif idle_since is None and _waits(query):
            idle_since = now
        if idle_since is not None and now - idle_since > IDLE_S:
            return time.time() if is_committed(checkpoint, batch) else None
        if timeout_s is not None and now - began > timeout_s:
            raise LifecycleError(
                f"The first batch of the query on {checkpoint.url} was not committed within {timeout_s:g} s."
            )
        pause.wait(_LOOK_S)


def _require_end(query: StreamingQuery, checkpoint: BlobPlace, failure: Exception | None) -> None:
    """Raise LifecycleError unless a query has ended because of its trigger."""
    if failure is not None:
        raise LifecycleError(
            f"The first batch of the query on {checkpoint.url} has failed: {describe_failure(failure)}"
        ) from failure
    if not ends_by_itself(query):
        raise LifecycleError(
            f"The query on {checkpoint.url} was stopped by other code before its first batch was committed."
        )


def _waits(query: StreamingQuery) -> bool:
    status = query.status
    return not status["isTriggerActive"] and str(status["message"]).startswith(_WAITS)


def _is_of(progress: dict[str, object], batch: int) -> bool:
    found = progress["batchId"]
    return isinstance(found, int) and found >= batch and has_run(progress)
