"""A place in this process's memory, with a clock that tests move: the ground under random schedules."""

from __future__ import annotations

import builtins
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from sortedcontainers import SortedDict  # type: ignore[import-untyped]

from pyspark_ckpt.state_store.blobs import Blob, Sink
from pyspark_ckpt.state_store.blobs.base.place import check_name
from pyspark_ckpt.state_store.errors import ConflictError, NotFoundError, StorageError


@dataclass(frozen=True)
class Stored:
    """One object: it is replaced, never changed."""

    data: bytes
    modified_s: float


class MemoryService:
    """All objects of all places, by URL. Safe to use from many threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Stamp objects with ``clock``."""
        self.clock = clock
        self.objects: dict[str, Stored] = SortedDict()
        self.lock = threading.Lock()

    def keys(self, lead: str, after: str = "") -> Iterator[str]:
        """Yield the URLs that begin with ``lead``, in order, from ``after`` on, if given."""
        return takewhile(lambda key: key.startswith(lead), self.objects.irange(max(lead, after)))  # type: ignore[attr-defined]

    def place(self, url: str) -> MemoryPlace:
        """The place at ``url``."""
        return MemoryPlace(self, url)


class MemoryPlace:
    """What lies below one URL of a service."""

    def __init__(self, service: MemoryService, url: str) -> None:
        """Use the objects whose names begin with ``url`` and a slash."""
        self._service = service
        self._url = url

    @property
    def url(self) -> str:
        """Where the place is."""
        return self._url

    @contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        """Write a new object piece by piece; see the protocol."""
        key, sink = self._key(name), io.BytesIO()
        yield sink
        if not self._write(key, sink.getvalue(), replace=False):
            raise ConflictError(f"{key} already exists.")

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write ``data`` unless ``name`` exists; see the protocol."""
        return self._write(self._key(name), data, replace=False)

    def put(self, name: str, data: bytes) -> None:
        """Write ``data``, replacing what was there; see the protocol."""
        self._write(self._key(name), data, replace=True)

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes ``start`` to ``end`` of the object; see the protocol."""
        key = self._key(name)
        with self._service.lock:
            stored = self._service.objects.get(key)
        if stored is None:
            raise NotFoundError(f"{key} does not exist.")
        return stored.data[start:end]

    def download(self, name: str, path: Path) -> int:
        """Copy the object into the local file ``path``; see the protocol."""
        data = self.get(name)
        try:
            path.write_bytes(data)
        except OSError as problem:
            raise StorageError(f"Could not copy {self._key(name)} into {path}: {problem}.") from problem
        return len(data)

    def list(self, folder: str = "", prefix: str = "", start: str = "") -> list[Blob]:
        """Objects directly in ``folder``; see the protocol."""
        lead = f"{self._key(folder)}/" if folder else f"{self._url}/"
        with self._service.lock:
            keys = self._service.keys(lead + prefix, lead + start)
            return [self._describe(key) for key in keys if "/" not in key[len(lead) :]]

    def walk(self, folder: str = "") -> builtins.list[Blob]:
        """All objects below ``folder``; see the protocol."""
        lead = f"{self._key(folder)}/" if folder else f"{self._url}/"
        with self._service.lock:
            return [self._describe(key) for key in self._service.keys(lead)]

    def delete(self, name: str) -> None:
        """Remove the object; see the protocol."""
        key = self._key(name)
        with self._service.lock:
            self._service.objects.pop(key, None)

    def remove_empty_folders(self) -> None:
        """Nothing; see the protocol."""

    def find_unfinished(self, older_than_s: float) -> builtins.list[Blob]:  # noqa: ARG002 - see below
        """Nothing; see the protocol."""
        return []

    def discard_unfinished(self, older_than_s: float) -> int:  # noqa: ARG002 - nothing is ever half-written here
        """Nothing; see the protocol."""
        return 0

    def _describe(self, key: str) -> Blob:
        stored = self._service.objects[key]
        return Blob(key.removeprefix(f"{self._url}/"), len(stored.data), stored.modified_s)

    def _key(self, name: str) -> str:
        return f"{self._url}/{check_name(name)}"

    def _write(self, key: str, data: bytes, *, replace: bool) -> bool:
        with self._service.lock:
            if key in self._service.objects and not replace:
                return False
            self._service.objects[key] = Stored(data, self._service.clock())
            return True
