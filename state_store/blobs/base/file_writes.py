"""Writes to places that have files: an object is a temporary file until it is durable, and then gets its name."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from pyspark_ckpt.state_store.blobs.base.place import Blob, Sink
from pyspark_ckpt.state_store.errors import ConflictError

_TEMPORARY = re.compile(r"\.(?:.+\.)?[0-9a-f]{32}\.tmp")


def is_temporary(name: str) -> bool:
    """Return whether a file of this name was written here and is not durable. Other hidden files are the user's."""
    return _TEMPORARY.fullmatch(name) is not None


class FileUpload(Sink, Protocol):
    """The sink of one object: a temporary file next to the final one."""

    def publish(self, *, replace: bool) -> bool:
        """Make the object durable, then let it appear. Return False if another exists and ``replace`` is False."""
        ...


class FileWrites(ABC):
    """The writes of such a place; see the protocol of places."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the place is."""

    @abstractmethod
    def _writing(self, name: str) -> AbstractContextManager[FileUpload]:
        """Begin to write an object. An exception inside the block leaves nothing. Raises StorageError."""

    @contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        """Write a new object piece by piece; see the protocol."""
        with self._writing(name) as upload:
            yield upload
            if not upload.publish(replace=False):
                raise ConflictError(f"{self.url.rstrip('/')}/{name} already exists.")

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write ``data`` unless ``name`` exists; see the protocol."""
        try:
            with self.create(name) as sink:
                sink.write(data)
        except ConflictError:
            return False
        return True

    def put(self, name: str, data: bytes) -> None:
        """Write ``data``, replacing what was there; see the protocol."""
        with self._writing(name) as upload:
            upload.write(data)
            upload.publish(replace=True)


def find_old(temporary: Sequence[Blob], older_than_s: float, now_s: Callable[[], float]) -> list[Blob]:
    """Return the temporary files that were last written at least ``older_than_s`` ago, by name.

    ``now_s`` tells the time of the place. It is not called if there are no temporary files.
    """
    if not temporary:
        return []
    limit = now_s() - older_than_s
    return sorted((blob for blob in temporary if blob.modified_s <= limit), key=lambda blob: blob.name)
