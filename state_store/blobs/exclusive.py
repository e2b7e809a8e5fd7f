"""Check that exactly one of several writers of one name succeeds in a place.

An S3 service that does not know ``If-None-Match: *`` ignores it and tells every writer that it was first. Code that
relies on being first checks here beforehand. Other writes work on such a service too: no two writers share the name, or
all of them write the same content.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pyspark_ckpt.state_store.blobs.base.place import BlobPlace
from pyspark_ckpt.state_store.errors import InvalidInputError


@runtime_checkable
class MayIgnoreConditions(Protocol):
    """A place of a service that may ignore the condition of a write."""

    def is_exclusive(self) -> bool:
        """Return whether a second conditional write of one name is refused. A process checks this once.

        Raises StorageError.
        """
        ...


def is_exclusive(place: BlobPlace) -> bool:
    """Return whether exactly one of several writers of one name succeeds. Raises StorageError."""
    return place.is_exclusive() if isinstance(place, MayIgnoreConditions) else True


def require_exclusive(place: BlobPlace, purpose: str, instead: str) -> None:
    """Refuse a place that is not exclusive, for a ``purpose`` that needs exactly one of several writers to succeed.

    Raises InvalidInputError, which says what to do ``instead``; StorageError.
    """
    if not is_exclusive(place):
        raise InvalidInputError(
            f"{place.url} cannot be used for {purpose}: the service ignores If-None-Match: * and lets two writers of "
            "one object both succeed.",
            hint=f"{instead} Or use a service with conditional writes: see docs/storage.md.",
        )
