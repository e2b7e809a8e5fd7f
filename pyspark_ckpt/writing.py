"""Write state: a savepoint with given rows, for a query that has never run, or in place of a query's own rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, cast

from pyspark_ckpt.jobs.spark_job import QUICK_BYTES
from pyspark_ckpt.offline.composing.composition import Composition
from pyspark_ckpt.offline.composing.parts import Part, read_part
from pyspark_ckpt.offline.composing.sources import GivenSource
from pyspark_ckpt.offline.writing.creation import Writing
from pyspark_ckpt.offline.writing.drafts.changes import (
    Change,
    Drop,
    Migration,
    Put,
    ReKey,
    Rename,
    SetMaxParallelism,
    Transform,
)
from pyspark_ckpt.offline.writing.explanation import ExplainedChanges
from pyspark_ckpt.offline.writing.first_files import CHECKPOINT_FORMAT, FIRST_CONFS, NewQuery
from pyspark_ckpt.offline.writing.given_rows import guess_bytes
from pyspark_ckpt.offline.writing.held_state import open_whole
from pyspark_ckpt.savepoints import collect_options, describe_release, read_session_confs, run_job
from pyspark_ckpt.state_store.arguments import Location, location_text
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.redistribution.jobs import RunHere
from pyspark_ckpt.state_store.savepoints.savepoint import Savepoint, SavepointInfo

__all__ = [
    "Change",
    "Drop",
    "ExplainedChanges",
    "Migration",
    "Put",
    "ReKey",
    "Rename",
    "SetMaxParallelism",
    "Transform",
    "compose_savepoint",
    "dry_run",
    "write_state",
]

MAX_SAMPLES = 1_000_000
PARALLELISM = 200
"""Spark's default number of shuffle partitions."""


def write_state(
    source: Location | None,
    target: Location,
    changes: Sequence[Change | Migration],
    *,
    parallelism: int | None = None,
    offsets: Sequence[object] | None = None,
    checkpoint_format: Literal[1, 2] | None = None,
    options: Mapping[str, str] | None = None,
) -> SavepointInfo:
    """Write a canonical savepoint into the empty folder ``target``: the state of ``source``, with ``changes``.

    ``source``: a savepoint of either kind, or the checkpoint of a query, running or stopped, whose last committed batch
    is taken. It is read but not changed. The new savepoint has the same offsets. ``changes``: such as ``Put``, applied
    one after another; a ``Migration`` that was already applied to the source is skipped. To continue a query from the
    savepoint, call ``restore``.

    With ``source`` None, the savepoint is of a query that has never run. Its operators are the uids of the changes, in
    the order in which Spark numbers them: from the sink to the sources, so an operator comes before those that it
    reads. ``offsets``: where each source of the program begins: JSON as Spark writes it, or None to let the program
    decide, for example by ``startingOffsets``; without ``offsets``, there is one source, and the program decides.
    ``parallelism``: the savepoint's, 200 by default; a restore may change it. ``checkpoint_format``: the format of the
    query's session, which is 1 on Spark 3.5 and 4.0; None for that of the active session, or 2 without one. Other confs
    that Spark keeps for a query also come from the active session, or are Spark's defaults.

    When it returns, the savepoint is complete and durable. All rows that stay were read before and after, and digests
    are equal; given rows are counted. After an error there may be an unfinished savepoint, which cannot be restored.
    Functions of changes run in the tasks that read the rows: in a Spark job if there is an active session, else in
    processes on this machine. ``options`` as for ``savepoint``.

    Raises InvalidInputError (an argument that is only for a query that has never run; a change that does not fit the
    state, rows that do not fit their types, several for one place, a function that cannot be sent to other processes, a
    target that is not empty), LifecycleError (no committed batch), ConflictError (another savepoint is being written
    there), NotFoundError, FormatError (damage), StorageError, ProcessError (a process has died); and any error of a
    change's function, whose cause has the traceback of the task.
    """
    target = location_text(target, "target")
    opened, given = _open(source, changes, _NewRun(parallelism, offsets, checkpoint_format), options, target)
    with run_job(f"savepoint to {target}", _guess_bytes(opened, changes)) as (runner, progress):
        return Writing(opened, target, given, runner, progress, describe_release()).run(changes)


def dry_run(
    source: Location | None,
    changes: Sequence[Change | Migration],
    *,
    samples: int = 5,
    parallelism: int | None = None,
    options: Mapping[str, str] | None = None,
) -> ExplainedChanges:
    """Return what ``write_state`` would do with these changes. Writes nothing.

    It makes and checks all rows, those of a Spark frame in the tasks of a job, and keeps ``samples`` of each state. It
    finds two rows for one place if they are near each other; ``write_state`` finds all. ``parallelism``: see there.

    Raises as ``write_state``, and InvalidInputError for rows that can be read once, such as those of a reader.
    """
    if type(samples) is not int or not 0 <= samples <= MAX_SAMPLES:
        raise InvalidInputError(f"`samples` must be a whole number from 0 to {MAX_SAMPLES:,}, got {samples!r}.")
    opened, given = _open(source, changes, _NewRun(parallelism, None, None), options)
    return Writing(opened, "", given, RunHere(), lambda _done, _all: None, "").explain(changes, samples)


def compose_savepoint(
    target: Location,
    operators: Sequence[tuple[Location, str | int] | None],
    *,
    sources: Sequence[tuple[Location, str | int] | Mapping[str, object] | str | None] | None = None,
    options: Mapping[str, str] | None = None,
) -> SavepointInfo:
    """Write a canonical savepoint into the empty folder ``target``, of operators of one query or of several.

    Use it to add an operator to a query that has run, to remove or reorder operators, or to merge two queries.

    ``operators``: those of the new program, in the order in which Spark numbers them, from the sink to the sources.
    Each is a pair of a savepoint or checkpoint, and the uid or number of the operator there; or None for a keyed
    operator that begins without state. Operators that are not named are left out. The new query gets the confs, the
    number of partitions and the checkpoint format of the first pair; confs for the layout of state come from the
    operators that have the state.

    ``sources``: those of the new program, in the order of its offset log: pairs of a savepoint or checkpoint, and the
    number or name of the source there; or an offset, or None, as in ``write_state``. They may be left out if all
    operators are of one savepoint: then its sources stay as they are.

    The batch is the highest of all, and the watermark the earliest of those that have begun. If all operators are of
    one query, the savepoint has its id, else a new one. Nothing that exists is changed. A batch that was planned but
    not committed will be planned again. When it returns, the savepoint is complete and durable; all rows were read
    before and after, and digests are equal.

    Raises InvalidInputError (a missing operator or source, a uid that two operators have, state that is laid out by
    different confs, a target that is not empty), LifecycleError (no committed batch), ConflictError (another savepoint
    is being written there), NotFoundError, FormatError (damage), StorageError.
    """
    target = location_text(target, "target")
    parts = [each if each is None else read_part(each, "An operator") for each in _require_list(operators, "operators")]
    given: list[GivenSource] | None = None
    if sources is not None:
        listed = _require_list(sources, "sources")
        given = [
            read_part(each, "A source") if isinstance(each, tuple) else cast("GivenSource", each) for each in listed
        ]
    if not any(isinstance(each, Part) for each in parts):
        raise InvalidInputError(
            f"`operators` is {list(operators)!r}: none is of a savepoint.",
            hint="For a query that has never run, use write_state(None, ...).",
        )
    locations = [each.location for each in (*parts, *(given or ())) if isinstance(each, Part)]
    collected = collect_options(options, *locations, target)
    spelled: dict[str, str] = {}

    def spell(part: Part) -> Part:
        """Give a place that is spelled in several ways the first spelling."""
        url = Workplace(collected).resolve(part.location).url
        return replace(part, location=spelled.setdefault(url, part.location))

    parts = [spell(each) if isinstance(each, Part) else each for each in parts]
    given = given and [spell(each) if isinstance(each, Part) else each for each in given]
    inputs = {each: open_whole(each, collected) for each in spelled.values()}
    size = sum(each.info.size_bytes if isinstance(each, Savepoint) else QUICK_BYTES for each in inputs.values())
    with run_job(f"savepoint to {target}", size) as (runner, progress):
        return Composition(inputs, parts, given, target, collected, runner, progress, describe_release()).run()


def _require_list(given: object, what: str) -> Sequence[object]:
    if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence) or not given:
        raise InvalidInputError(f"`{what}` must be a list with one entry or more, got {repr(given)[:200]}.")
    return given


class _NewRun(NamedTuple):
    """The arguments for a query that has never run."""

    parallelism: int | None
    offsets: Sequence[object] | None
    checkpoint_format: Literal[1, 2] | None

    def require_nothing(self) -> None:
        """Raise InvalidInputError if anything is given: the source has its own."""
        given = [name for name, value in self._asdict().items() if value is not None]
        if given:
            raise InvalidInputError(
                f"`{given[0]}` is given, but the source has its own.",
                hint="Leave it out: it is only for a query that has never run (source None). A restore can change the "
                "parallelism.",
            )


def _open(
    source: Location | None, changes: object, new: _NewRun, options: Mapping[str, str] | None, *locations: str
) -> tuple[NewQuery | Checkpoint, Options]:
    """Open the source of the changes; return it with the options of the call.

    Raises InvalidInputError, FormatError, StorageError.
    """
    if isinstance(changes, (str, Mapping)) or not isinstance(changes, Sequence):
        raise InvalidInputError(
            f"`changes` must be a list, got {repr(changes)[:200]} of type {type(changes).__name__}.",
            hint="Give a list of changes: see pyspark_ckpt.writing.",
        )
    if source is not None:
        new.require_nothing()
        location = location_text(source, "source")
        given = collect_options(options, location, *locations)
        return open_whole(location, given), given
    found = read_session_confs((*FIRST_CONFS, CHECKPOINT_FORMAT))
    session_format = 2 if found is None else int(found.pop(CHECKPOINT_FORMAT, 1))  # 1 is Spark's default
    chosen = session_format if new.checkpoint_format is None else new.checkpoint_format
    parallelism = PARALLELISM if new.parallelism is None else new.parallelism
    offsets = (None,) if new.offsets is None else new.offsets
    return NewQuery(parallelism, offsets, chosen, found or {}), collect_options(options, *locations)


def _guess_bytes(source: NewQuery | Checkpoint, changes: Sequence[Change | Migration]) -> int:
    """Return about how much state the savepoint will have."""
    kept = QUICK_BYTES if isinstance(source, Checkpoint) else 0
    if isinstance(source, Savepoint):
        kept = source.info.size_bytes
    single: list[object] = []
    for each in changes:
        within: object = each.changes if isinstance(each, Migration) else [each]
        single += within if isinstance(within, Sequence) else []
    return kept + sum(guess_bytes(change.rows) for change in single if isinstance(change, Put))
