"""Whether a place keeps its word that of several writers of one name exactly one succeeds.

A service of S3 that does not know ``If-None-Match: *`` ignores it: it tells every writer that he was first. Whatever
relies on being first asks here before; whatever does not (objects whose names no two writers share, or that hold the
same in any case) works on such a service, too.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pyspark_ckpt.state_store.blobs.base.place import BlobPlace
from pyspark_ckpt.state_store.errors import InvalidInputError


@runtime_checkable
class MayIgnoreConditions(Protocol):
    """A place of a service that may ignore the condition of a write."""

    def is_exclusive(self) -> bool:
        """Whether a second conditional write of one name is refused; a process finds it out once.

        Raises StorageError.
        """
        ...


def is_exclusive(place: BlobPlace) -> bool:
    """Whether of several writers of one name exactly one succeeds. Raises StorageError."""
    return place.is_exclusive() if isinstance(place, MayIgnoreConditions) else True


def require_exclusive(place: BlobPlace, purpose: str, instead: str) -> None:
    """Refuse a place for a ``purpose`` for which exactly one of several writers must succeed.

    Raises InvalidInputError, which says what to do ``instead``; StorageError.
    """
    if not is_exclusive(place):
        raise InvalidInputError(
            f"{place.url} cannot be used for {purpose}: the service ignores If-None-Match: * and lets two writers of "
            "one object both succeed.",
            hint=f"{instead} Or use a service with conditional writes: docs/deploying.md.",
        )
