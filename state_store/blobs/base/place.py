"""The interface of a place that stores blobs. Every place must pass the suite in ``tests/contracts``.

A place is one folder. Names are relative to it and use ``/``. Every write is all or nothing and durable: on return, it
survives the loss of this machine, as far as the place can ensure that. A reader sees the whole content or no object. A
write whose answer was lost raises StorageError with outcome ``unknown``.
"""

from __future__ import annotations

import builtins
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pyspark_ckpt.state_store.errors import InvalidInputError


def check_name(name: str) -> str:
    """Return ``name`` if it is a valid name of an object, which cannot leave its place. Raises InvalidInputError."""
    if any(part in ("", ".", "..") for part in name.split("/")) or is_unstorable(name):
        raise InvalidInputError(f"{name!r} is not the name of an object.")
    return name


def is_unstorable(name: str) -> bool:
    """Return whether no file system or service can store ``name``: it has a NUL, or is not valid Unicode."""
    return "\0" in name or (not name.isascii() and any("\ud800" <= character <= "\udfff" for character in name))


class Sink(Protocol):
    """Receives the bytes of one object, in order."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Append ``data``. Return its length."""
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
        """Write a new object piece by piece. It appears, whole and durable, when the block ends.

        An exception inside the block leaves nothing. Exactly one of several writers succeeds. Raises ConflictError
        at the end of the block (``name`` exists), StorageError.
        """
        ...

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write ``data`` unless ``name`` exists. Exactly one of several writers gets True. Raises StorageError."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write ``data``, replacing what was there. Raises StorageError."""
        ...

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes ``start`` to ``end`` (exclusive; None: to the end). Raises NotFoundError, StorageError."""
        ...

    def download(self, name: str, path: Path) -> int:
        """Copy the object into the new local file ``path``. Return its size. Raises NotFoundError, StorageError."""
        ...

    def list(self, folder: str = "", prefix: str = "", start: str = "") -> list[Blob]:
        """Return the objects directly in ``folder``, by name.

        Only those whose last name part begins with ``prefix`` and is >= ``start``. Complete for every object whose
        write returned before the call. A missing folder counts as empty. Raises StorageError.
        """
        ...

    def walk(self, folder: str = "") -> builtins.list[Blob]:
        """Return all objects in ``folder`` and below it, by name; as complete as ``list``. Raises StorageError.

        A link to another folder is not followed. Its name is listed with a "/" at the end, unlike the name of any
        object.
        """
        ...

    def delete(self, name: str) -> None:
        """Remove the object; no error if it is not there. Raises StorageError."""
        ...

    def remove_empty_folders(self) -> None:
        """Remove the empty folders below this one, if the place has folders. Raises StorageError.

        A folder whose name begins with a dot stays, with all of its content.
        """
        ...

    def find_unfinished(self, older_than_s: float) -> builtins.list[Blob]:
        """Return the unfinished writes, here and below, of writers that died at least ``older_than_s`` ago.

        Writes nothing. Ages are by the clock of the place if it can be read without a write, else by this host's clock.
        Raises StorageError.
        """
        ...

    def discard_unfinished(self, older_than_s: float) -> int:
        """Remove what ``find_unfinished`` finds, by the clock of the place. Return how many. Raises StorageError."""
        ...
