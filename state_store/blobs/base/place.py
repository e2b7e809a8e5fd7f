"""What the engine asks of a place that keeps blobs; ``tests/contracts`` has the suite every place must pass.

A place is one folder. Names are relative to it and use ``/``. Every write is all or nothing and durable:
after return it survives the loss of this machine as far as the place can; a reader sees the whole
content or no object. A write whose answer was lost raises StorageError with outcome ``unknown``.
"""

from __future__ import annotations

import builtins
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pyspark_ckpt.state_store.errors import InvalidInputError


def check_name(name: str) -> str:
    """``name``, if it is the name of an object of a place: it cannot leave it. Raises InvalidInputError."""
    if any(part in ("", ".", "..") for part in name.split("/")) or is_unstorable(name):
        raise InvalidInputError(f"{name!r} is not the name of an object.")
    return name


def is_unstorable(name: str) -> bool:
    """Whether a file system or a service cannot take ``name`` at all: it has a NUL, or is no Unicode text."""
    return "\0" in name or any("\ud800" <= character <= "\udfff" for character in name)


class Sink(Protocol):
    """Receives the bytes of one object, in order."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Append ``data``; returns its length."""
        ...


@dataclass(frozen=True)
class Blob:
    """One object of a listing: name relative to the place, size, and when it was written (Unix time)."""

    name: str
    size_bytes: int
    modified_s: float


class BlobPlace(Protocol):
    """A folder of durable objects."""

    @property
    def url(self) -> str:
        """Where the place is, for messages; without credentials."""
        ...

    def create(self, name: str) -> AbstractContextManager[Sink]:
        """Write a new object piece by piece; it appears, whole and durable, when the block ends.

        An exception inside the block leaves nothing. Raises ConflictError at the end of the block if
        ``name`` exists (exactly one of several writers succeeds), StorageError.
        """
        ...

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write ``data`` unless ``name`` exists; of several writers exactly one gets True. Raises StorageError."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write ``data``, replacing what was there. Raises StorageError."""
        ...

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes ``start`` to ``end`` (exclusive; None: to the end). Raises NotFoundError, StorageError."""
        ...

    def download(self, name: str, path: Path) -> int:
        """Copy the object into the new local file ``path``, return its size. Raises NotFoundError, StorageError."""
        ...

    def list(self, folder: str = "", prefix: str = "", start: str = "") -> list[Blob]:
        """Objects directly in ``folder`` whose last name part begins with ``prefix`` and is >= ``start``, by name.

        Complete for every object whose write returned before the call. A folder that is not there is empty.
        Raises StorageError.
        """
        ...

    def walk(self, folder: str = "") -> builtins.list[Blob]:
        """All objects in ``folder`` and below it, by name; as complete as ``list``. Raises StorageError.

        A link to another folder is not followed: it is listed, by a name that ends in "/", which no object has.
        """
        ...

    def delete(self, name: str) -> None:
        """Remove the object; no error if it is not there. Raises StorageError."""
        ...

    def remove_empty_folders(self) -> None:
        """Remove the folders below this one in which nothing is, where a place has folders. Raises StorageError.

        One that begins with a dot stays, as does what is in it.
        """
        ...

    def find_unfinished(self, older_than_s: float) -> builtins.list[Blob]:
        """What writers that died ``older_than_s`` ago left half-written here and below. Writes nothing.

        By the time of the place, where it can be read without a write, else by that of this host. Raises StorageError.
        """
        ...

    def discard_unfinished(self, older_than_s: float) -> int:
        """Remove what ``unfinished`` finds by the time of the place; returns how many. Raises StorageError."""
        ...
