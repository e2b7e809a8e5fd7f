"""Say whether another number of partitions would help a query."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pyspark_ckpt.offline.advice.progress_figures import find_progress, is_progress
from pyspark_ckpt.offline.advice.report import Advice, advise_on
from pyspark_ckpt.queries.handles import count_slots, find_checkpoint, is_query
from pyspark_ckpt.queries.progress import read_progress
from pyspark_ckpt.savepoints import collect_options
from pyspark_ckpt.state_store.arguments import Location
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

MAX_LOG_BYTES = 256 << 20
"""How much of the end of a file with progress is read."""


def advise(
    query_or_checkpoint: StreamingQuery | Location,
    *,
    progress: Location | Iterable[Mapping[str, Any]] | None = None,
    cores: int | None = None,
    options: Mapping[str, str] | None = None,
) -> Advice:
    """Say whether more or fewer partitions would help a query, and by which figures. Nothing is changed.

    ``query_or_checkpoint``: a query, running or stopped, whose progress Spark keeps; or a checkpointLocation.
    ``progress``: a file with progress as JSON, which may have other lines, or the parsed values. ``cores``: how many
    tasks run at a time; for a query, by default as many as its session has now. ``options`` as for ``savepoint``.

    docs/operators.md has the rules and their thresholds. If the figures do not suffice, the verdict is "unknown".
    Raises InvalidInputError (progress of another query, no state), LifecycleError (no committed batch), NotFoundError,
    FormatError, StorageError.
    """
    location = find_checkpoint(query_or_checkpoint)
    given = collect_options(options, location)
    found: Iterable[Mapping[str, Any]] = ()
    if is_query(query_or_checkpoint):
        query = cast("StreamingQuery", query_or_checkpoint)
        found = read_progress(query)
        cores = count_slots(query) if cores is None else cores
    if isinstance(progress, (str, os.PathLike)):
        found = read_progress_file(progress)
    elif progress is not None:
        found = list(progress)
        if not all(map(is_progress, found)):
            raise InvalidInputError("`progress` has a value that is not a query's progress as JSON.")
    return advise_on(Checkpoint(location, given), found, cores, given)


def read_progress_file(path: Location) -> list[dict[str, Any]]:
    """Return the progress in the last ``MAX_LOG_BYTES`` of a local file. Raises InvalidInputError (there is none)."""
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MAX_LOG_BYTES))
            text = file.read().decode(errors="replace")
    except OSError as problem:
        raise InvalidInputError(f"{os.fspath(path)} cannot be read: {problem.strerror or problem}.") from problem
    found = list(find_progress(text))
    if not found:
        raise InvalidInputError(
            f"{os.fspath(path)} has no progress of a query.",
            hint="Write each progress as a line of JSON: `progress.json` of a StreamingQueryListener.",
        )
    return found
