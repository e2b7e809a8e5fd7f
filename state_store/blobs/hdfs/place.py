"""A folder of HDFS as a place for blobs, through hdfs-native, a client that needs no JVM.

A write goes to a temporary file in the same folder. The data nodes sync it to their disks, and the name node closes it.
A rename then gives it its final name. The name node renames atomically and, if told so, refuses to replace another
file. A visible name therefore has its whole content.

The bytes of an object are kept until its file is closed. If a data node or the lease is lost, they are written again,
to another file. A rename without an answer is requested again, which is safe because it can happen only once: if the
temporary file is gone, the content under the final name shows whether the rename happened. When a write is given up,
its temporary file is deleted, so that the rename can never happen later.

The client has no timeouts of its own. A call without an answer is abandoned together with its client.

Paths are Hadoop's: percent signs in a URI are part of the name, not escapes.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from hdfs_native import FileReader, FileStatus

from pyspark_ckpt.state_store.blobs.base.file_writes import FileWrites, find_old, is_temporary
from pyspark_ckpt.state_store.blobs.base.place import Blob, check_name
from pyspark_ckpt.state_store.blobs.base.place_clock import read_shown_time
from pyspark_ckpt.state_store.blobs.base.retries import Retries
from pyspark_ckpt.state_store.blobs.hdfs.errors import (
    CLIENT_ERRORS,
    DataNodeError,
    failures,
    may_pass,
    reading,
)
from pyspark_ckpt.state_store.blobs.hdfs.requests import HdfsRequests
from pyspark_ckpt.state_store.blobs.hdfs.uploads import HdfsUpload

READ_BYTES = 8 << 20
"""The most that one request reads of an object."""

T = TypeVar("T")


class HdfsPlace(HdfsRequests, FileWrites, Retries):
    """A folder of HDFS. The first write creates it. Safe to use from many threads."""

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes ``start`` to ``end`` of the object; see the protocol."""
        path = self._path(name)

        def read() -> bytes:
            source = self._open(path)
            stop = len(source) if end is None else min(end, len(source))
            return b"".join(self._read(source, at, stop) for at in range(start, stop, READ_BYTES))

        with reading(self._where(name)):
            return self.ask(read)

    def download(self, name: str, path: Path) -> int:
        """Copy the object into the new local file ``path``; see the protocol. Resumes after the loss of a data node."""
        where, size = self._path(name), 0
        with reading(self._where(name)), path.open("wb", buffering=0) as target:
            source = self.ask(lambda: self._open(where))
            while size < len(source):
                piece = self.ask(partial(self._read_again, where, source, size))
                _write_all(target, piece)
                size += len(piece)
        return size

    def _open(self, path: str) -> FileReader:
        client = self.client
        return self.call(lambda: client.read(path))

    def _read(self, source: FileReader, start: int, stop: int) -> bytes:
        size = min(READ_BYTES, stop - start)
        piece = self.call_data_node(lambda: source.read_range(start, size))
        if len(piece) != size:
            raise DataNodeError(f"a data node returned {len(piece)} of {size} bytes")
        return piece

    def _read_again(self, path: str, source: FileReader, start: int) -> bytes:
        """Return a piece, read by ``source`` or, if ``source`` has lost its data nodes, by a new reader."""
        try:
            return self._read(source, start, len(source))
        except CLIENT_ERRORS as problem:
            if not may_pass(problem):
                raise
        return self._read(self._open(path), start, len(source))

    def list(self, folder: str = "", prefix: str = "", start: str = "") -> list[Blob]:
        """Return the objects directly in ``folder``; see the protocol."""
        lead = f"{check_name(folder)}/" if folder else ""
        found = []
        for entry in self._entries(folder):
            name = _last_part(entry)
            if not entry.isdir and name.startswith(prefix) and name >= start and not name.startswith("."):
                found.append(Blob(lead + name, entry.length, entry.modification_time / 1000))
        return sorted(found, key=lambda blob: blob.name)

    def walk(self, folder: str = "") -> builtins.list[Blob]:
        """Return all objects below ``folder``; see the protocol. Makes one request for each folder."""
        found: builtins.list[Blob] = []
        folders = [folder]
        while folders:
            here = folders.pop()
            for entry in self._entries(here):
                name = _last_part(entry)
                where = f"{here}/{name}".lstrip("/")
                if entry.isdir and not name.startswith("."):
                    folders.append(where)
                elif not name.startswith("."):
                    found.append(Blob(where, entry.length, entry.modification_time / 1000))
        return sorted(found, key=lambda blob: blob.name)

    def delete(self, name: str) -> None:
        """Remove the object; see the protocol."""
        with failures("delete", self._where(name)):
            self._delete(self._path(name))

    def remove_empty_folders(self) -> None:
        """Remove empty folders; see the protocol."""
        folders = [""]
        for here in folders:  # grows during the loop
            inside = (_last_part(entry) for entry in self._entries(here) if entry.isdir)
            folders += [f"{here}/{name}".lstrip("/") for name in inside if not name.startswith(".")]
        for folder in reversed(folders[1:]):
            with failures("delete", self._where(folder)):
                self._remove_if_empty(self._path(folder))

    def find_unfinished(self, older_than_s: float) -> builtins.list[Blob]:
        """Return temporary files of dead writers; see the protocol."""
        return self._find_unfinished(older_than_s, lambda: read_shown_time(self))

    def _find_unfinished(self, older_than_s: float, now_s: Callable[[], float]) -> builtins.list[Blob]:
        found: builtins.list[Blob] = []
        folders = [""]
        for here in folders:  # grows during the loop
            for entry in self._entries(here):
                name = _last_part(entry)
                where = f"{here}/{name}".lstrip("/")
                if entry.isdir and not name.startswith("."):
                    folders.append(where)
                elif is_temporary(name) and not entry.isdir:
                    found.append(Blob(where, entry.length, entry.modification_time / 1000))
        return find_old(found, older_than_s, now_s)

    def discard_unfinished(self, older_than_s: float) -> int:
        """Remove temporary files of dead writers; see the protocol."""
        count = 0
        for blob in self._find_unfinished(older_than_s, self.now_s):
            with failures("delete", self._where(blob.name)):
                count += self._delete(self._path(blob.name))
        return count

    def now_s(self) -> float:
        """Return the time that the name node stamps on a new file. Raises StorageError."""
        with failures("ask for the time of", self.url):
            return self.ask(lambda: self.stamp_ms(self._root)) / 1000

    def _remove_if_empty(self, path: str) -> None:
        try:
            self._delete(path)
        except RuntimeError as problem:
            if "PathIsNotEmptyDirectoryException" not in str(problem):
                raise

    def _delete(self, path: str) -> bool:
        def delete() -> bool:
            client = self.client
            return self.call(lambda: client.delete(path))

        return self.ask(delete)

    def _entries(self, folder: str) -> Sequence[FileStatus]:
        path = self._path(folder) if folder else self._root or "/"

        def entries() -> Sequence[FileStatus]:
            client = self.client
            return self.call(lambda: list(client.list_status(path)))

        with failures("list", f"{self.url}/{folder}".rstrip("/")):
            try:
                return self.ask(entries)
            except FileNotFoundError:
                return []

    @contextmanager
    def _writing(self, name: str) -> Iterator[HdfsUpload]:
        upload = HdfsUpload(self, self._path(name), self._where(name))
        try:
            upload.begin()
            yield upload
        except BaseException:
            upload.abandon()
            raise


def _write_all(target: BinaryIO, data: bytes) -> None:
    view, done = memoryview(data), 0
    while done < len(view):
        done += target.write(view[done:])


def _last_part(entry: FileStatus) -> str:
    return str(entry.path).rpartition("/")[2]
