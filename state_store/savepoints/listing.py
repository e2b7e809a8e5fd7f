"""Find savepoints below a folder, also those that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.blobs.base.capabilities import CanWalkAround
from pyspark_ckpt.state_store.errors import FormatError, StorageError
from pyspark_ckpt.state_store.savepoints.savepoint import NAME, UNFINISHED, SavepointInfo, read_info_at

Found: TypeAlias = SavepointInfo | FormatError | StorageError | None
"""A savepoint; what is wrong with one that is damaged; why one cannot be read; None for an unfinished one."""


def find_savepoints(place: BlobPlace) -> list[tuple[str, Found]]:
    """Return the savepoints in a place and below it, each with its folder.

    A folder that this user may not look into has its error. Raises StorageError, also if it is the place itself.
    """
    found: list[tuple[str, Found]] = []
    unfinished: list[str] = []
    blobs, closed = place.walk_around() if isinstance(place, CanWalkAround) else (place.walk(), [])
    for blob in blobs:
        folder, _, name = blob.name.rpartition("/")
        if name == NAME:
            with _catching(found, folder or "."):
                found.append((folder or ".", read_info_at(place, blob.name)))
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
    except FormatError as problem:
        found.append((folder, problem))
    except StorageError as problem:
        if not problem.is_denied or folder == ".":
            raise
        found.append((folder, problem))
