"""Choose the folder for the new checkpoint of a rescaled query, and look at what an earlier call has left there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from pyspark_ckpt.state_store.attempts.runs import Epochs
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.folder_kind import FolderKind, find_kind
from pyspark_ckpt.state_store.checkpoints.query.entries import PARTITIONS_CONF, read_partitions
from pyspark_ckpt.state_store.checkpoints.query.files import list_batches
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.savepoints.restoring.target_records import read_recorded

MAX_TAKEN = 1000
"""How many folders for one number of partitions are tried before the caller must name one."""

_OWN_NAME = re.compile(r"-[0-9]+-partitions(?:-[0-9]+)?\Z")


@dataclass(frozen=True)
class Target:
    """A folder for the new checkpoint. ``is_made``: an earlier call has made it, and no batch was committed there."""

    location: str
    is_made: bool


def list_siblings(checkpoint: str, partitions: int) -> Iterator[str]:
    """Yield the folders that a checkpoint may get for a number of partitions: beside it, the first free one counts."""
    base = _OWN_NAME.sub("", checkpoint.rstrip("/"))
    for number in count(1):
        yield f"{base}-{partitions}-partitions" + (f"-{number}" if number > 1 else "")


def find_target(old: Checkpoint, location: str, partitions: int, given: str | None, options: Options) -> Target:
    """Return the folder for the new checkpoint of a query: the one that was ``given``, or the first sibling to use.

    ``location``: of the old checkpoint, as the query has it. Raises InvalidInputError (the query has run on the new
    checkpoint since; the given folder cannot be used), StorageError.
    """
    if given is not None:
        target = _look(old, given, partitions, options)
        if isinstance(target, Target):
            return target
        raise InvalidInputError(f"{given} cannot be the new checkpoint: {target}.", hint="Name a new folder.")
    _refuse_earlier(old, partitions, options)
    for number, sibling in enumerate(list_siblings(location, partitions)):
        target = _look(old, sibling, partitions, options)
        if isinstance(target, Target):
            return target
        if number == MAX_TAKEN:
            break
    raise InvalidInputError(
        f"{MAX_TAKEN} folders such as {sibling} are in use.", hint="Name a folder with new_checkpoint, or delete some."
    )


def _refuse_earlier(old: Checkpoint, partitions: int, options: Options) -> None:
    """Refuse if the last act on a checkpoint was to rescale it, to any folder and any number.

    Raises InvalidInputError (the query runs there, has begun a batch there, or has gone there for good), FormatError,
    StorageError.
    """
    newest = Epochs(old.place).find_newest()
    if newest is None or not newest.moves_to:
        return
    there: Checkpoint | None
    try:
        there = Checkpoint(newest.moves_to, options)
    except (InvalidInputError, NotFoundError):  # it was not finished, or is gone
        there = None
    if there is None or there.query_id != old.query_id:
        if newest.moved_at_ms:
            raise InvalidInputError(
                f"Query {old.query_id} was rescaled to {newest.moves_to}, but its checkpoint is no longer there.",
                hint=f"If it has gone on elsewhere, start it there. To process again from {old.place.url}, name "
                "another new_checkpoint.",
            )
        return
    if there.newest_version > old.newest_version:
        raise _refuse_rescaled(old, there)
    if newest.moved_at_ms and _find_partitions(there) != partitions:
        raise _refuse_rescaled(old, there)
    number, planned = _find_partitions(there), max(list_batches(there.place, "offsets"), default=-1)
    if number != partitions and planned >= there.newest_version == old.newest_version:
        raise InvalidInputError(
            f"Query {old.query_id} was being rescaled to {there.place.url}, and has begun a batch there.",
            hint=f"Call with parallelism={number} to finish that, then with {partitions}.",
        )


def _refuse_rescaled(old: Checkpoint, there: Checkpoint) -> InvalidInputError:
    return InvalidInputError(
        f"Query {old.query_id} was rescaled before, and has run on {there.place.url} since. Its last committed "
        f"batch is {there.newest_version - 1} there, and {old.newest_version - 1} on {old.place.url}.",
        hint=f"Start the query on {there.place.url}, with {PARTITIONS_CONF}={_find_partitions(there)}. On "
        f"{old.place.url}, it would process rows again. If that is what you want, name another new_checkpoint.",
    )


def is_own(old: Checkpoint, location: str, partitions: int) -> bool:
    """Return whether a folder was made by a rescaling of the old checkpoint, finished or not.

    Raises StorageError.
    """
    place = old.workplace.resolve(location)
    if find_kind(place) is FolderKind.CHECKPOINT:
        there = Checkpoint(location, old.workplace.options)
        is_later = there.newest_version >= old.newest_version
        return there.query_id == old.query_id and is_later and _find_partitions(there) == partitions
    return _is_begun(old, place, partitions)


def _look(old: Checkpoint, location: str, partitions: int, options: Options) -> Target | str:
    """Return a folder as the target, or why it cannot be one. Raises InvalidInputError, StorageError."""
    place = old.workplace.resolve(location)
    kind = find_kind(place)
    if kind is FolderKind.CHECKPOINT:
        return _look_at_checkpoint(old, Checkpoint(location, options), location, partitions)
    if kind is None and not (there := place.walk()):
        return Target(location, is_made=False)
    if kind in (None, FolderKind.UNFINISHED_RESTORE) and _is_begun(old, place, partitions):
        return Target(location, is_made=False)  # the same rescaling, which goes on
    return f"it has {there[0].name}" if kind is None else f"it is {kind.value}"


def _look_at_checkpoint(old: Checkpoint, there: Checkpoint, location: str, partitions: int) -> Target | str:
    if there.query_id != old.query_id:
        return f"it is the checkpoint of query {there.query_id}"
    if there.newest_version > old.newest_version:
        raise _refuse_rescaled(old, there)
    if there.newest_version == old.newest_version and _find_partitions(there) == partitions:
        return Target(location, is_made=True)
    return f"it is a checkpoint of this query after batch {there.newest_version - 1}"


def _is_begun(old: Checkpoint, place: BlobPlace, partitions: int) -> bool:
    """Return whether a folder has the unfinished rescaling of the newest batch to so many partitions."""
    try:
        recorded, _ = read_recorded(place)
    except FormatError:
        return False
    wanted = (old.place.url, old.newest_version, partitions)
    return recorded is not None and (recorded.source, recorded.version, recorded.partitions) == wanted


def _find_partitions(checkpoint: Checkpoint) -> int | None:
    try:
        return read_partitions(checkpoint.place, checkpoint.newest_version - 1)
    except (FormatError, NotFoundError):  # no batch is committed there, or the log is damaged
        return None
