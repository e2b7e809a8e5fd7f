"""The sink of one object: a temporary file next to the final one."""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from pyspark_ckpt.state_store.blobs.local.files import TEMPORARY, may_pass, sync_file, write_all
from pyspark_ckpt.state_store.errors import StorageError

KEPT_BYTES = 16 << 20
"""How much of an object is kept, to be written again, until it is durable. A larger object cannot be written again."""

T = TypeVar("T")


class Folders(Protocol):
    """The folders for files: the services of a place to an upload."""

    def ask(self, request: Callable[[], T]) -> T:
        """Return the answer to a request, which is repeated while its failures may pass."""

    def make_folder(self, folder: Path) -> None:
        """Make ``folder`` and its parents, each durable in its own parent."""

    def sync_folder(self, folder: Path) -> None:
        """Make the names in ``folder`` durable, at once or together with others."""


class LocalUpload:
    """The sink of one object: a temporary file next to the final one."""

    def __init__(self, place: Folders, path: Path) -> None:
        """Write the object that becomes the file ``path`` of ``place``."""
        self._place, self._path = place, path
        self._file: io.FileIO | None = None
        self._temporary = path
        self._kept: list[bytes] = []
        self._size = self._kept_bytes = 0
        self._is_synced = self._is_named = False
        self.is_begun = False

    def begin(self) -> None:
        """Begin a temporary file."""
        self._place.ask(self._begin)
        self.is_begun = True

    def write(self, data: bytes | memoryview, /) -> int:
        """Append all of ``data``."""
        if self._kept_bytes == self._size < KEPT_BYTES:  # all is kept so far
            self._kept.append(bytes(data))
            self._kept_bytes += len(data)
        self._size += len(data)
        if self._file is not None:
            try:
                write_all(self._file, data)
            except OSError as problem:
                if not may_pass(problem) or self._kept_bytes != self._size:
                    raise
                self.discard()  # publish writes it again
        return len(data)

    def publish(self, *, replace: bool) -> bool:
        """Make the object durable, then let it appear. Return False if another exists and ``replace`` is False."""
        return self._place.ask(lambda: self._publish(replace=replace))

    def discard(self) -> None:
        """Close and delete the temporary file."""
        self.close()
        if self._temporary != self._path:
            with suppress(OSError):  # the failed disk may fail again: discard_unfinished finds the rest
                self._temporary.unlink()

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # what must be durable was fsynced; the rest does not count
                file.close()

    def _begin(self) -> io.FileIO:
        self._place.make_folder(self._path.parent)
        self._temporary = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex}{TEMPORARY}")
        self._file = file = io.FileIO(self._temporary, "xb")
        return file

    def _publish(self, *, replace: bool) -> bool:
        if not self._is_synced:
            self._sync()
            self._is_synced = True
        if not self._is_named:
            self._is_named = self._name(replace=replace)
        if self._is_named:
            self._place.sync_folder(self._path.parent)
        return self._is_named

    def _sync(self) -> None:
        """Make the written bytes durable. A failure leaves an unknown part on the disk, so the file is deleted."""
        try:
            file = self._file
            if file is None:
                file = self._begin()
                for piece in self._kept:
                    write_all(file, piece)
            sync_file(file.fileno())
        except OSError as problem:
            self.discard()
            if self._kept_bytes != self._size:
                raise StorageError(
                    f"Could not write {self._path}: {problem}. Its {self._size} bytes are too many to write again.",
                    outcome="not_applied",
                ) from problem
            raise
        self._identity = os.fstat(file.fileno())

    def _name(self, *, replace: bool) -> bool:
        """Give the file its name, unless an earlier try without an answer did. Return False if the name is taken."""
        try:
            if replace:
                self._temporary.replace(self._path)
            else:
                os.link(self._temporary, self._path)
        except FileExistsError:
            if not self._has_name():
                return False
        except FileNotFoundError:
            if not self._has_name():
                raise
        if not replace:
            self._temporary.unlink(missing_ok=True)
        return True

    def _has_name(self) -> bool:
        with suppress(FileNotFoundError):
            return os.path.samestat(self._path.stat(), self._identity)
        return False
