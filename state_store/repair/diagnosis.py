"""The damage in a checkpoint, the batch after which its query can continue, and the files that must go for that.

Damaged files and the entries of later batches must go. State stays: commits of later versions do not count, because the
commit log does not name them (checkpoint format 2), or because the winners of a later run take precedence (format 1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pyspark_ckpt.state_store.attempts.runs import RunObject
from pyspark_ckpt.state_store.checkpoints.query.carried_plans import CARRIED_FILE
from pyspark_ckpt.state_store.checkpoints.query.files import QUERY
from pyspark_ckpt.state_store.errors import FormatError, LifecycleError, NotFoundError
from pyspark_ckpt.state_store.format.names import REPLAY_FOLDER, RUNS_FOLDER, WATERMARKS_FOLDER
from pyspark_ckpt.state_store.format.sealed_objects import read_sealed
from pyspark_ckpt.state_store.repair.continuation import (
    NONE_COMMITTED,
    Continuation,
    Obstacle,
    find_continuations,
    find_lost_starts,
    find_useless_source_files,
)
from pyspark_ckpt.state_store.repair.damaged_checkpoint import DamagedCheckpoint
from pyspark_ckpt.state_store.repair.entries import REWRITTEN_SCHEMA, Entries, read_entries
from pyspark_ckpt.state_store.repair.state_check import find_lost_log, find_state_faults

_OF_OPERATORS = re.compile(r"state/[0-9]+/(?:_metadata/metadata|_stateSchema/.+)")
"""Files that nothing in a checkpoint can replace: the descriptions of operators, and the schemas of their states."""


@dataclass(frozen=True)
class Diagnosis:
    """The findings. ``continuation``: None if the query cannot continue after any batch that is known here.

    ``problems``: a message for each damaged or missing file, needed or not. ``obstacles``: why the query cannot
    continue after later batches. ``removed``: the names of files that must be moved away, in a safe order. ``lost``:
    messages about damage that only a backup can undo. ``query_ids``: ids that the query may have; one, if it is known.
    """

    problems: tuple[str, ...]
    obstacles: tuple[Obstacle, ...]
    continuation: Continuation | None
    removed: tuple[str, ...]
    lost: tuple[str, ...]
    query_ids: tuple[str, ...]
    lacks_id: bool
    last_seen: int
    """The newest batch that has, or had, an entry in a log or a carried plan; -1 if there is none."""

    @property
    def is_healthy(self) -> bool:
        """Return whether the query can be started as it is, and continues where it was."""
        return not (self.removed or self.lost or self.lacks_id) and self.continuation is not None

    @property
    def cut_anew(self) -> range:
        """Return the batches that a sink may have and that get new plans: they may get other rows."""
        return range(0) if self.continuation is None else range(self.continuation.last_planned + 1, self.last_seen + 1)


def diagnose(checkpoint: DamagedCheckpoint, *, reads_all: bool) -> Diagnosis:
    """Look at everything that a start of the query needs, and change nothing. The query may run.

    ``reads_all``: read the state as well, not only its names and metadata. Raises InvalidInputError (state of another
    provider), LifecycleError (the query continues in another checkpoint), StorageError.
    """
    entries = read_entries(checkpoint.place)
    _refuse_moved(checkpoint, entries)
    lost_log = ""
    continuation, obstacles, passed_over = _choose(checkpoint, entries, reads_all=reads_all)
    if continuation is not None and continuation.batch == NONE_COMMITTED and (lost_log := find_lost_log(checkpoint)):
        continuation = None
    planned = (number for log in ("offsets", "commits", REPLAY_FOLDER) for number in entries.list_numbers(log))
    last_seen = max([entries.last_carried, *planned], default=NONE_COMMITTED)
    ids = (checkpoint.query_id,) if checkpoint.query_id else tuple(sorted(checkpoint.find_ids()))
    removed = () if continuation is None else tuple(_find_removed(entries, continuation))
    lost = [] if continuation is None else find_lost_starts(entries, continuation.last_logged)
    lost += [name for name in entries.problems if _OF_OPERATORS.fullmatch(name)]
    return Diagnosis(
        (*_describe_problems(checkpoint, entries), *passed_over),
        obstacles,
        continuation,
        tuple(name for name in removed if name not in lost),
        (
            *filter(None, [lost_log and f"{lost_log}, and offsets with it"]),
            *(f"{entries.problems[name]} Nothing in the checkpoint can replace its content." for name in lost),
        ),
        ids,
        not checkpoint.query_id,
        last_seen,
    )


class _Choice(NamedTuple):
    """``obstacles``: the reasons against later continuations. ``passed_over``: faults that a restore gets around."""

    continuation: Continuation | None
    obstacles: tuple[Obstacle, ...]
    passed_over: tuple[str, ...]


def _choose(checkpoint: DamagedCheckpoint, entries: Entries, *, reads_all: bool) -> _Choice:
    """Return the newest continuation whose state can be restored."""
    obstacles: list[Obstacle] = []
    for found in find_continuations(entries):
        if isinstance(found, Obstacle):
            obstacles.append(found)
        elif found.batch == NONE_COMMITTED:
            return _Choice(found, tuple(obstacles), ())
        else:
            faults = find_state_faults(checkpoint, found.batch, reads_all=reads_all)
            if not faults.lost:
                return _Choice(found, tuple(obstacles), tuple(faults.passed_over))
            obstacles += [Obstacle(found.batch, problem) for problem in faults.lost]
    return _Choice(None, tuple(obstacles), ())


def _find_removed(entries: Entries, chosen: Continuation) -> Iterator[str]:
    """Yield the files that must go, later batches first.

    The offsets go before the commits: with later offsets and no later commit, Spark would leave out batches. In the
    other order of loss, it fails. Carried plans go later: if one is left after a gap, the query fails there.
    """
    for log, last in (
        ("offsets", chosen.last_logged),
        ("commits", chosen.batch),
        (REPLAY_FOLDER, chosen.last_planned),
        (WATERMARKS_FOLDER, chosen.last_logged),
        *((folder, chosen.last_logged) for folder in sorted(entries.metadata_folders)),
    ):
        for number in reversed(entries.list_numbers(log)):
            if number > last or f"{log}/{number}" in entries.problems:
                yield f"{log}/{number}"
    if CARRIED_FILE in entries.problems or entries.last_carried > chosen.last_planned:
        yield CARRIED_FILE
    yield from reversed(find_useless_source_files(entries, chosen.last_planned))
    for name in sorted(entries.problems):
        if REWRITTEN_SCHEMA.fullmatch(name) or name.startswith(f"{RUNS_FOLDER}/"):
            yield name


def _describe_problems(checkpoint: DamagedCheckpoint, entries: Entries) -> Iterator[str]:
    url = checkpoint.place.url
    if not checkpoint.query_id:
        yield f"{url}/{QUERY} is missing or damaged: it has the id of the query."
    yield from (entries.problems[name] for name in sorted(entries.problems, key=_in_order))
    offsets, commits = entries.list_numbers("offsets"), entries.list_numbers("commits")
    newest = max([*offsets, *(batch + 1 for batch in commits)], default=0)
    for log, numbers, last in (("offsets", offsets, newest - 1), ("commits", commits, max(offsets, default=0) - 1)):
        first = min(numbers, default=min([*offsets, *commits], default=0))
        yield from (f"{url}/{log}/{which} missing." for which in _describe_gaps(first, numbers, last))
    carried, first = entries.list_numbers(REPLAY_FOLDER), max([*offsets, *commits], default=NONE_COMMITTED) + 1
    last = max([entries.last_carried, *carried])
    left = (each for each in carried if each >= first)
    yield from (f"{url}/{REPLAY_FOLDER}/{which} missing." for which in _describe_gaps(first, left, last))


def _describe_gaps(first: int, numbers: Iterable[int], last: int) -> Iterator[str]:
    """Yield which numbers of ``first`` to ``last`` are not among ``numbers``, which ascend."""
    for here, there in pairwise([first - 1, *(each for each in numbers if each <= last), last + 1]):
        if there - here > 1:
            yield f"{here + 1} is" if there - here == 2 else f"{here + 1} to {there - 1} are"  # noqa: PLR2004


def _in_order(name: str) -> tuple[str, int, str]:
    folder, _, number = name.rpartition("/")
    return folder, int(number) if number.isdecimal() else 0, name


def _refuse_moved(checkpoint: DamagedCheckpoint, entries: Entries) -> None:
    """Raise LifecycleError if the newest run says that the query was, or was to be, rescaled to another checkpoint."""
    runs = sorted(name for name in entries.names if name.startswith(f"{RUNS_FOLDER}/"))
    if not runs or not entries.is_whole(runs[-1]):
        return
    try:
        newest = read_sealed(checkpoint.place, runs[-1], RunObject)
    except (NotFoundError, FormatError):
        return
    if newest.moves_to:
        raise LifecycleError(
            f"The query of {checkpoint.place.url} was rescaled to {newest.moves_to}, or was to be: it is not repaired.",
            hint=f"Start the program with the checkpointLocation {newest.moves_to}.",
        )
