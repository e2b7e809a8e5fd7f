"""What some places can do beyond ``BlobPlace``; whoever asks has another way for those that cannot.

A place that wraps another one has all of these, and can what that one can.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from pyspark_ckpt.state_store.blobs.base.place import BlobPlace


@runtime_checkable
class CanCopy(Protocol):
    """A place whose service copies objects from one place to another, so that no byte passes through this process."""

    def copies_from(self, source: BlobPlace) -> bool:
        """Whether objects of ``source`` may be copied so."""
        ...

    def copy_from(self, source: BlobPlace, name: str, size_bytes: int, new_name: str) -> bool:
        """Copy an object of ``source``, replacing what was there; False if the service does not copy this one.

        Raises NotFoundError, StorageError.
        """
        ...


@runtime_checkable
class CanLink(Protocol):
    """A place in which two names may be of one object, which is there as long as one of them is."""

    def link_from(self, source: BlobPlace, name: str, new_name: str) -> bool:
        """Name an object of ``source`` here too, durably; False if it has to be copied.

        Raises NotFoundError, ConflictError (there is one of the new name), StorageError.
        """
        ...


@runtime_checkable
class CanWriteTogether(Protocol):
    """A place in which many new objects are made durable at once, which takes less time than one by one."""

    def together(self) -> AbstractContextManager[BlobPlace]:
        """The place for new objects, all of which are durable when the block has ended. Raises StorageError then."""
        ...
