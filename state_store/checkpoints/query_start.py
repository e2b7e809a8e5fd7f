"""What Spark reads of a query's own files when it starts on a checkpoint, and what it does if some are missing.

Spark takes the newest entry of the offset log, the entry before it, and the newest entry of the commit log. If the
newest batch is committed, it plans the next one; else it runs that batch with the logged offsets. What it does if one
is missing was tried with Spark 4.3, in both checkpoint formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.query_log import QUERY, check_content, list_batches
from pyspark_ckpt.state_store.errors import FormatError, NotFoundError

START_ATTEMPTS = 3
"""How often the files are read if the query commits meanwhile."""


@dataclass(frozen=True)
class StartFiles:
    """The files that a start reads. Without ``problems``, the query continues after its newest committed batch."""

    files: int
    bytes_read: int
    problems: tuple[str, ...]


def verify_start(checkpoint: Checkpoint) -> StartFiles:
    """Read what a start of the query needs, also while it runs: then after the newest batch that is committed.

    If no batch is committed, only the first one may be planned: offsets of a later batch are a problem.

    Raises StorageError.
    """
    for _ in range(START_ATTEMPTS):
        version = checkpoint.newest_version
        found = _read_start(checkpoint, version - 1)
        if not found.problems:
            break
        checkpoint.look_again()
        if checkpoint.newest_version == version:
            break
    return found


def _read_start(checkpoint: Checkpoint, batch: int) -> StartFiles:
    """Read what is needed to continue after ``batch``, the newest committed one; -1 if none is."""
    place = checkpoint.place
    planned = list_batches(place, "offsets")
    newest = max(planned, default=batch)
    wanted = {f"offsets/{each}" for each in (newest - 1, newest) if each in planned}
    read = StartFiles(0, 0, tuple(_find_gaps(place.url, batch, planned)))
    if batch >= 0:
        wanted.add(f"commits/{batch}")
    for name in (QUERY, *sorted(wanted)):
        where = f"{place.url}/{name}"
        try:
            content = check_content(name, place.get(name), where)
        except NotFoundError as problem:
            read = replace(read, problems=(*read.problems, problem.message))
        except FormatError as problem:
            told = f"{problem.message} Spark does not start the query with it."
            read = replace(read, problems=(*read.problems, told))
        else:
            read = replace(read, files=read.files + 1, bytes_read=read.bytes_read + len(content))
    return read


def _find_gaps(url: str, batch: int, planned: set[int]) -> Iterator[str]:
    """Yield what is wrong with the entries of the offset log, if ``batch`` is the newest in the commit log."""
    newest = max(planned, default=-1)
    committed = f"and {url}/commits/{batch} says that the batch is committed"
    if newest < 0 <= batch:
        yield f"{url}/offsets has no entry, {committed}: Spark does not start the query"
    elif newest < batch:
        yield f"{url}/offsets/{batch} is missing, {committed}: Spark runs batch {newest} again, and the query fails"
    elif newest > 0 and newest - 1 not in planned:
        yield (
            f"{url}/offsets/{newest - 1} is missing, and {url}/offsets/{newest} is there: Spark does not start the "
            "query, because it needs both"
        )
    if newest > batch + 1:
        yield (
            f"{url}/commits/{newest - 1} is missing, and {url}/offsets/{newest} is there: Spark runs batch {newest} "
            f"from version {newest} of the state; in checkpoint format 2 it does not know its id, and the query fails"
        )
