"""What some places can do beyond ``BlobPlace``. Callers have another way for places that cannot.

A place that wraps another one has all of these methods, and the capabilities of the wrapped place.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from pyspark_ckpt.state_store.blobs.base.place import Blob, BlobPlace


class HasUrl(Protocol):
    """Anything with objects in one place."""

    @property
    def url(self) -> str:
        """Where it is, for messages."""
        ...


@runtime_checkable
class IsReachedByOptions(Protocol):
    """A place that another process reaches by its URL only with the same options of this package."""

    @property
    def options(self) -> dict[str, str]:
        """These options by their names. Credentials are not among them."""
        ...


def find_options(*places: BlobPlace) -> dict[str, str]:
    """Return the options with which a command reaches the ``places``."""
    found: dict[str, str] = {}
    for place in places:
        if isinstance(place, IsReachedByOptions):
            found |= place.options
    return found


@runtime_checkable
class KnowsWhere(Protocol):
    """A place that shows some objects under names of its own."""

    def where(self, name: str) -> str:
        """Return where an object really is, for messages."""
        ...


def where_is(place: HasUrl, name: str) -> str:
    """Return where an object of a place is, for messages."""
    return place.where(name) if isinstance(place, KnowsWhere) else f"{place.url}/{name}"


@runtime_checkable
class CanWalkAround(Protocol):
    """A place in which a user may be kept out of some folders."""

    def walk_around(self) -> tuple[list[Blob], list[str]]:
        """Return the result of ``walk`` for folders that are open to this user, and the other folders it has met.

        "." is the place itself. Raises StorageError.
        """
        ...


@runtime_checkable
class CanCopy(Protocol):
    """A place whose service copies objects from one place to another, so that no byte passes through this process."""

    def copies_from(self, source: BlobPlace) -> bool:
        """Return whether objects of ``source`` may be copied this way."""
        ...

    def copy_from(self, source: BlobPlace, name: str, size_bytes: int, new_name: str) -> bool:
        """Copy an object of ``source``, replacing what was there. Return False if the service does not copy this one.

        Raises NotFoundError, StorageError.
        """
        ...


@runtime_checkable
class CanLink(Protocol):
    """A place in which one object may have two names. It exists as long as one of them does."""

    def link_from(self, source: BlobPlace, name: str, new_name: str) -> bool:
        """Give an object of ``source`` a durable name here too. Return False if it has to be copied.

        Raises NotFoundError, ConflictError (``new_name`` exists), StorageError.
        """
        ...


@runtime_checkable
class CanWriteTogether(Protocol):
    """A place that makes many new objects durable together, which is faster than one by one."""

    def together(self) -> AbstractContextManager[BlobPlace]:
        """Return the place for new objects. All are durable when the block ends. Raises StorageError then."""
        ...
