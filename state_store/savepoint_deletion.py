"""Delete a savepoint: all of it and nothing else, also when that is interrupted and done again.

``savepoint.unfinished`` is put first and deleted last, and ``savepoint.json`` is the first to go: what there is in
between is a savepoint that did not finish, which is listed, restored by nobody, and deleted as any other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pyspark_ckpt.state_store.blobs import Blob, BlobPlace
from pyspark_ckpt.state_store.errors import InvalidInputError, NotFoundError
from pyspark_ckpt.state_store.names import CHECKPOINT_FOLDER, ROWS_FOLDER
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.query_log import QUERY
from pyspark_ckpt.state_store.restoration import forget, standing
from pyspark_ckpt.state_store.restore_request import Request, Restored
from pyspark_ckpt.state_store.savepoint import NAME, UNFINISHED
from pyspark_ckpt.state_store.store_version import Workplace

DELETING = b"deleting"
"""Content of ``savepoint.unfinished`` from then on."""

_MARKS = (NAME, UNFINISHED)
_FILES = (*_MARKS, QUERY)
_FOLDERS = ("offsets", "commits", "sources", "state", ROWS_FOLDER, CHECKPOINT_FOLDER)
_ANY_AGE = -math.inf


def delete(location: str, options: Options) -> int:
    """Delete a savepoint, also one that did not finish; returns how many objects that were.

    What was interrupted is finished by the same call. Raises InvalidInputError, before anything is deleted, for a
    place that is neither or has anything else in it; StorageError.
    """
    place = Workplace(options).named(location)
    blobs = place.walk()
    if not any(blob.name in _MARKS for blob in blobs):
        raise InvalidInputError(
            f"{place.url} is no savepoint: nothing was deleted.",
            hint="A checkpoint is deleted by its owner's own means.",
        )
    refuse_others(place, blobs)
    place.put(UNFINISHED, DELETING)
    for blob in sorted(blobs, key=lambda blob: blob.name != NAME):
        if blob.name != UNFINISHED:
            place.delete(blob.name)
    place.discard_unfinished(_ANY_AGE)
    place.remove_empty_folders()
    place.delete(UNFINISHED)
    return len(blobs)


def refuse_others(place: BlobPlace, blobs: Sequence[Blob]) -> None:
    """Raise InvalidInputError if any of ``blobs``, all that a savepoint's place has, is not of the savepoint."""
    others = [blob.name for blob in blobs if not _is_of_savepoint(blob.name)]
    if others:
        raise InvalidInputError(
            f"{place.url} has more than a savepoint, {others[0]}"
            + (f" and {len(others) - 1} more" if others[1:] else "")
            + ", which would be deleted with it: nothing was deleted.",
            hint="Delete or move what is not of the savepoint, such as other savepoints and checkpoints, first.",
        )


def _is_of_savepoint(name: str) -> bool:
    """Whether an object may be one of a savepoint in whose place it is, and is of none that lies deeper."""
    folder, slash, rest = name.partition("/")
    if not slash:
        return name in _FILES or name.startswith(".")
    return folder in _FOLDERS and rest.rpartition("/")[2] not in _MARKS


def finish_claim(location: str, target: str, request: Request, options: Options) -> Restored | None:
    """End a restore that was interrupted while it deleted its savepoint; None if there is none such.

    Without ``request.partitions`` it may have been to any number of them. Raises FormatError, StorageError.
    """
    source, place = Workplace(options).named(location), Workplace(replace(options, remote="")).named(target)
    if any(blob.name == NAME for blob in source.list(prefix=NAME)):
        return None
    finished = standing(place)
    if finished is None or not finished.request.is_of(source.url, request, options.remote):
        return None
    if _is_half_deleted(source):
        delete(location, options)
    forget(place)
    return finished.result


def _is_half_deleted(place: BlobPlace) -> bool:
    try:
        return place.get(UNFINISHED) == DELETING
    except NotFoundError:
        return False
