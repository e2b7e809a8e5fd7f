"""Find savepoints below a folder, including those that cannot be used."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.blobs.base.capabilities import CanWalkAround
from pyspark_ckpt.state_store.checkpoints.query.files import LOGS
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError, StorageError
from pyspark_ckpt.state_store.savepoints.savepoint import NAME, UNFINISHED, SavepointInfo, read_info_at, refuse_query

Found: TypeAlias = SavepointInfo | FormatError | InvalidInputError | StorageError | None
"""A savepoint; the fault of one that cannot be restored; why one cannot be read; None for an unfinished one."""

_LOG = re.compile(rf"(?:(.*)/)?((?:{'|'.join(LOGS)})/[0-9]{{1,19}})", re.DOTALL)
"""An entry of a log, and the folder of its query."""


def find_savepoints(place: BlobPlace) -> list[tuple[str, Found]]:
    """Return the savepoints in a place and below it, each with its folder.

    A savepoint in whose folder a query was started has an InvalidInputError. A folder that this user may not look into
    has its error. Raises StorageError, also if it is the place itself.
    """
    found: list[tuple[str, Found]] = []
    unfinished: list[str] = []
    logs = defaultdict[str, list[str]](list)
    blobs, closed = place.walk_around() if isinstance(place, CanWalkAround) else (place.walk(), [])
    seen = [blob.name for blob in blobs]
    for log in filter(None, map(_LOG.fullmatch, seen)):
        logs[log[1] or "."].append(log[2])
    for each in seen:
        folder, _, name = each.rpartition("/")
        if name == NAME:
            with _catching(found, folder or "."):
                info = read_info_at(place, each)
                refuse_query(info, f"{place.url}/{folder}".rstrip("/"), logs[folder or "."])
                found.append((folder or ".", info))
        elif name == UNFINISHED:
            unfinished.append(folder or ".")
    for folder in closed:
        with _catching(found, folder):
            place.list("" if folder == "." else folder)
    known = dict(found)
    return found + [(folder, None) for folder in unfinished if folder not in known]


@contextmanager
def _catching(found: list[tuple[str, Found]], folder: str) -> Iterator[None]:
    """Note in ``found`` what is wrong with a ``folder`` if the block fails for that alone."""
    try:
        yield
    except (FormatError, InvalidInputError) as problem:
        found.append((folder, problem))
    except StorageError as problem:
        if not problem.is_denied or folder == ".":
            raise
        found.append((folder, problem))
