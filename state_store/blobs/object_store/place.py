"""A folder of a bucket as a place for blobs, on a service that honours conditional writes.

An object appears whole when its request, or the request that joins its parts, has been answered. The metadata of an
object names the conditional write that made it. A write that was repeated, or whose answer was lost, reads there
whether it has landed.
"""

from __future__ import annotations

import builtins
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pyspark_ckpt.state_store.blobs.base.place import Blob, BlobPlace, Sink, check_name
from pyspark_ckpt.state_store.blobs.base.retries import Retries
from pyspark_ckpt.state_store.blobs.object_store.requests import ObjectRequests
from pyspark_ckpt.state_store.blobs.object_store.service import MissingError, Page, PastEndError, Range
from pyspark_ckpt.state_store.blobs.object_store.uploads import PART_BYTES, ObjectUpload, is_away, transfers
from pyspark_ckpt.state_store.errors import ConflictError

COPIED_BYTES_PER_S = 20 << 20
"""The slowest rate at which a service may copy an object."""


class ObjectPlace(ObjectRequests, Retries):
    """A folder of a bucket. Safe to use from many threads."""

    @property
    def options(self) -> dict[str, str]:
        """The options that reach the place; see ``IsReachedByOptions``."""
        return dict(self.bucket.options)

    @contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        """Write a new object piece by piece; see the protocol. A small one is one request, others go in parts."""
        upload = ObjectUpload(self, name)
        self.key(name)
        try:
            yield upload
            landed = upload.finish()
        except BaseException as problem:
            upload.abort(is_away=is_away(problem))
            raise
        if not landed:
            raise ConflictError(f"{self.describe(name)} already exists.")

    def put(self, name: str, data: bytes) -> None:
        """Write ``data``, replacing what was there; see the protocol."""
        key = self.key(name)
        with self.failures("write", name, "unknown"):
            self.ask(lambda: self.bucket.put(key, data))

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes ``start`` to ``end`` of the object; see the protocol."""
        if end is not None and end <= start:
            return b""
        with self.failures("read", name):
            first = self._fetch(name, start, start + PART_BYTES if end is None else min(end, start + PART_BYTES))
            stop = first.size_bytes if end is None else min(end, first.size_bytes)
            if start + len(first.data) >= stop:
                return first.data
            rest = self._fetch_parts(name, start + len(first.data), stop, first.tag)
            return b"".join([first.data, *(part.data for part in rest)])

    def download(self, name: str, path: Path) -> int:
        """Copy the object into the local file ``path``, in parallel ranges; see the protocol."""
        with self.failures("read", name), path.open("wb") as target:
            first, lock, asked = self._fetch(name, 0, PART_BYTES), threading.Lock(), time.monotonic()
            target.write(first.data)
            size = first.size_bytes

            def fetch(begin: int) -> None:
                part = self._fetch(name, begin, min(begin + PART_BYTES, size), first.tag, asked)
                with lock:
                    target.seek(begin)
                    target.write(part.data)

            if size > len(first.data):
                list(transfers().map(fetch, range(len(first.data), size, PART_BYTES)))
            return size

    def list(self, folder: str = "", prefix: str = "", start: str = "") -> list[Blob]:
        """Return the objects directly in ``folder``; see the protocol."""
        lead = self.root + (f"{check_name(folder)}/" if folder else "")
        found = self._list(folder, lead + prefix, lead + start if start else "", is_deep=False)
        return [blob for blob in found if blob.name[len(lead) - len(self.root) :] >= start]

    def walk(self, folder: str = "") -> builtins.list[Blob]:
        """Return all objects below ``folder``; see the protocol."""
        lead = self.root + (f"{check_name(folder)}/" if folder else "")
        return self._list(folder, lead, "", is_deep=True)

    def delete(self, name: str) -> None:
        """Remove the object; see the protocol."""
        key = self.key(name)

        def delete() -> None:
            try:
                self.bucket.delete(key)
            except MissingError:
                return

        with self.failures("delete", name, "unknown"):
            self.ask(delete)

    def copies_from(self, source: BlobPlace) -> bool:
        """Return whether the service copies objects of ``source``; see ``capabilities``."""
        return isinstance(source, ObjectPlace) and self.bucket.copies_from(source.bucket)

    def copy_from(self, source: BlobPlace, name: str, size_bytes: int, new_name: str) -> bool:
        """Have the service copy an object of ``source``. Return False if it does not copy this one.

        Replaces an object ``new_name``. Raises NotFoundError, StorageError.
        """
        if not isinstance(source, ObjectPlace) or not self.copies_from(source):
            return False
        origin, key = source.key(name), self.key(new_name)
        with source.failures("copy", name, "unknown"):
            self.ask(lambda: self.bucket.copy(source.bucket, origin, key), work_s=size_bytes / COPIED_BYTES_PER_S)
        return True

    def remove_empty_folders(self) -> None:
        """Remove empty folders, if the service has folders; see the protocol."""
        with self.failures("remove the empty folders of", "."):
            self.ask_present(lambda: self.bucket.remove_empty_folders(self.root, self.ask))

    def find_unfinished(self, older_than_s: float) -> builtins.list[Blob]:
        """Return nothing: the service itself discards unfinished writes after seven days. See the protocol."""
        del older_than_s
        return []

    def discard_unfinished(self, older_than_s: float) -> int:
        """Do nothing, as ``find_unfinished`` finds nothing; see the protocol."""
        return len(self.find_unfinished(older_than_s))

    def read_shown_s(self) -> float:
        """Return the time of the service; see ``now_s``, which writes nothing."""
        return self.now_s()

    def now_s(self) -> float:
        """Return the time of the service, from its answer to a small request. Raises StorageError."""
        with self.failures("ask for the time of", "."):
            return self.ask(lambda: self.bucket.now_s())  # noqa: PLW0108 - each try has the present bucket

    def _list(self, folder: str, prefix: str, start: str, *, is_deep: bool) -> builtins.list[Blob]:
        found: builtins.list[Blob] = []
        more = ""
        with self.failures("list", folder or "."):
            while True:
                page = self.ask(partial(self._read_page, prefix, start, more, is_deep=is_deep))
                for entry in page.entries:
                    name = entry.key[len(self.root) :]
                    if name and not name.endswith("/"):  # else the marker of a folder, from a console or Hadoop
                        found.append(Blob(name, entry.size_bytes, entry.modified_s))
                more = page.more
                if not more:
                    return sorted(found, key=lambda blob: blob.name)

    def _read_page(self, prefix: str, start: str, more: str, *, is_deep: bool) -> Page:
        return self.bucket.read_page(prefix, start, more, is_deep=is_deep)

    def _fetch_parts(self, name: str, start: int, end: int, tag: str) -> Iterator[Range]:
        asked = time.monotonic()

        def fetch(begin: int) -> Range:
            return self._fetch(name, begin, min(begin + PART_BYTES, end), tag, asked)

        return transfers().map(fetch, range(start, end, PART_BYTES))

    def _fetch(self, name: str, start: int, end: int, tag: str = "", asked: float | None = None) -> Range:
        """Return a range of an object. It is empty past the end."""
        key = self.key(name)

        def fetch() -> Range:
            try:
                return self.bucket.read(key, start, end, tag)
            except PastEndError:
                return Range(b"", 0, "")

        return self.ask(fetch, asked=asked)
