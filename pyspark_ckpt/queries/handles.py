"""The JVM's objects of a streaming query: its execution, its checkpoint, and other runs with its id.

Only a classic session has them. The handles of a Spark Connect client know none of these.
"""

from __future__ import annotations

import re
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

from pyspark_ckpt.state_store.arguments import Location, location_text
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_TEMPORARY = re.compile(r"temporary-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""How Spark names the checkpoint of a query that was given none. Spark deletes it when the query ends."""


def is_query(given: object) -> bool:
    """Return whether something is a streaming query, and no location."""
    return not isinstance(given, (str, PathLike)) and hasattr(given, "runId") and hasattr(given, "isActive")


def find_checkpoint(query: StreamingQuery | Location) -> str:
    """Return the checkpointLocation of a query. Raises InvalidInputError."""
    if isinstance(query, (str, PathLike)) or not hasattr(query, "runId"):
        return location_text(query, "query_or_checkpoint")
    return str(find_execution(query).resolvedCheckpointRoot())


def find_execution(query: StreamingQuery) -> Any:  # noqa: ANN401 - an object of the JVM
    """Return the JVM's object that runs a query. Raises InvalidInputError for the handle of a Spark Connect client."""
    handle = getattr(query, "_jsq", None)
    if handle is None:
        raise InvalidInputError(
            "A Spark Connect client does not know the checkpointLocation of a running query.",
            hint="Pass the checkpointLocation in place of the query, which may keep running.",
        )
    return handle.streamingQuery()


def ends_by_itself(query: StreamingQuery) -> bool:
    """Return whether the trigger of a query ends it when it has read all available data."""
    name = str(find_execution(query).trigger().getClass().getSimpleName())
    return name.rstrip("$") in ("OneTimeTrigger", "AvailableNowTrigger")


def is_temporary(checkpoint: str) -> bool:
    """Return whether Spark deletes a checkpoint when its query ends, by its name."""
    return _TEMPORARY.fullmatch(checkpoint.rstrip("/").rpartition("/")[2]) is not None


def find_run(session: Any, query_id: str) -> Any | None:  # noqa: ANN401 - objects of the JVM
    """Return the execution of the query with this id that any session of the application runs; None if none does.

    ``session``: one of the JVM's.
    """
    runs = session.sharedState().activeStreamingQueries().values()
    return next((run for run in list(runs) if str(run.id()) == query_id), None)


def find_handle(run: Any) -> StreamingQuery | None:  # noqa: ANN401 - an object of the JVM
    """Return the handle of a run; None if it has ended meanwhile."""
    from pyspark.sql.streaming.query import StreamingQuery  # noqa: PLC0415 - see the docstring of the package

    found = run.sparkSession().streams().get(run.id())
    return None if found is None else StreamingQuery(found)


def find_driver(session: Any) -> str:  # noqa: ANN401 - an object of the JVM
    """Return the name of a session's driver as runs of queries have it: application and host, as in ``Fence.scala``."""
    context = session.sparkContext()
    return f"{context.applicationId()} on {context.conf().get('spark.driver.host', '')}"


def count_slots(query: StreamingQuery) -> int | None:
    """Return how many tasks the executors of a query's session can run at a time; None if there is no executor."""
    executors = cast("Any", query)._jsq.sparkSession().sparkContext().statusStore().executorList(True)  # noqa: SLF001
    return sum(executors.apply(number).maxTasks() for number in range(executors.size())) or None


def is_in_batch(query: StreamingQuery) -> bool:
    """Return whether this thread is in a batch of the query: in its function for ``foreachBatch``."""
    from pyspark import SparkContext  # noqa: PLC0415 - see the docstring of the package

    thread = cast("Any", SparkContext._jvm).java.lang.Thread.currentThread()  # noqa: SLF001
    return bool(thread.equals(find_execution(query).queryExecutionThread()))


def describe_failure(problem: Exception) -> str:
    """Return one line about a query's failure, without its plan: the user's Python error, if it was one."""
    text = str(problem).partition("=== Streaming Query ===")[0].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(problem).__name__]
    return (lines[-1] if any(line.endswith("Traceback (most recent call last):") for line in lines) else lines[0])[:500]
