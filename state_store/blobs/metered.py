"""Count the requests to a place by kind, and the bytes of objects in each direction.

A transfer counts as one request, whether the place sends it whole or in parts. Failed requests count too. A test can
make a request fail like the place itself: before it is sent, or after a write was carried out.
"""

from __future__ import annotations

import builtins
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark_ckpt.state_store.blobs.base.capabilities import CanCopy, CanLink, CanWriteTogether, find_options
from pyspark_ckpt.state_store.blobs.base.place import Blob, BlobPlace, Sink
from pyspark_ckpt.state_store.blobs.base.place_clock import ask_time, find_service
from pyspark_ckpt.state_store.blobs.exclusive import is_exclusive
from pyspark_ckpt.state_store.failpoints import AFTER_WRITE, FailPoints

WRITES, READS, LISTS, DELETES = "write_requests", "read_requests", "list_requests", "delete_requests"
UP, DOWN = "uploaded_bytes", "downloaded_bytes"
WAIT = "place_wait_ms"
NO_FAIL_POINTS = FailPoints()
_BEFORE = {
    WRITES: "place.before_write",
    READS: "place.before_read",
    LISTS: "place.before_list",
    DELETES: "place.before_delete",
}


class Traffic:
    """Counts of requests and bytes. Safe to use from many threads."""

    def __init__(self) -> None:
        """Begin at zero."""
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._waited_s = 0.0

    def note_wait(self, seconds: float) -> None:
        """Add the time taken by a repeated request."""
        with self._lock:
            self._waited_s += seconds

    def count(self, **counts: int) -> None:
        """Add ``counts``."""
        with self._lock:
            self._counts.update(counts)

    def take(self) -> dict[str, int]:
        """Return the counts since the last call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return {name: counts[name] for name in (WRITES, READS, LISTS, DELETES, UP, DOWN)}

    def take_wait(self) -> dict[str, int]:
        """Return how long the process has waited for places since the last call."""
        with self._lock:
            waited_s, self._waited_s = self._waited_s, 0.0
        return {WAIT: round(waited_s * 1000)}


class MeteredPlace:
    """A place that counts the traffic of another place."""

    def __init__(self, place: BlobPlace, traffic: Traffic, failpoints: FailPoints = NO_FAIL_POINTS) -> None:
        """Count the requests to ``place`` in ``traffic``. They pass the ``failpoints`` of their kind."""
        self._place = place
        self._traffic = traffic
        self._failpoints = failpoints

    @property
    def url(self) -> str:
        """Where the place is; see the protocol."""
        return self._place.url

    @property
    def service(self) -> str:
        """What stamps the objects; see ``place_clock``."""
        return find_service(self._place)

    @property
    def options(self) -> dict[str, str]:
        """The options that reach the place; see ``IsReachedByOptions``."""
        return find_options(self._place)

    @contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        """Write a new object piece by piece; see the protocol."""
        with self._place.create(name) as sink:
            self._note(WRITES)
            yield _MeteredSink(sink, self._traffic)
        self._failpoints.hit(AFTER_WRITE)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write ``data`` unless ``name`` exists; see the protocol."""
        self._note(WRITES, len(data))
        is_first = self._place.put_if_absent(name, data)
        self._failpoints.hit(AFTER_WRITE)
        return is_first

    def put(self, name: str, data: bytes) -> None:
        """Write ``data``, replacing what was there; see the protocol."""
        self._note(WRITES, len(data))
        self._place.put(name, data)
        self._failpoints.hit(AFTER_WRITE)

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes ``start`` to ``end`` of the object; see the protocol."""
        self._note(READS)
        data = self._place.get(name, start, end)
        self._traffic.count(**{DOWN: len(data)})
        return data

    def download(self, name: str, path: Path) -> int:
        """Copy the object into the local file ``path``; see the protocol."""
        self._note(READS)
        size = self._place.download(name, path)
        self._traffic.count(**{DOWN: size})
        return size

    def list(self, folder: str = "", prefix: str = "", start: str = "") -> builtins.list[Blob]:
        """Return the objects directly in ``folder``; see the protocol."""
        self._note(LISTS)
        return self._place.list(folder, prefix, start)

    def walk(self, folder: str = "") -> builtins.list[Blob]:
        """Return all objects below ``folder``; see the protocol."""
        self._note(LISTS)
        return self._place.walk(folder)

    def delete(self, name: str) -> None:
        """Remove the object; see the protocol."""
        self._note(DELETES)
        self._place.delete(name)

    def copies_from(self, source: BlobPlace) -> bool:
        """Return whether the service copies objects of ``source``; see ``capabilities``."""
        return isinstance(self._place, CanCopy) and self._place.copies_from(_bare(source))

    def copy_from(self, source: BlobPlace, name: str, size_bytes: int, new_name: str) -> bool:
        """Have the service copy an object, which counts as a write; see ``capabilities``."""
        place, bare = self._place, _bare(source)
        if not (_is_whole(source, name) and isinstance(place, CanCopy) and place.copies_from(bare)):
            return False
        self._note(WRITES)
        return place.copy_from(bare, name, size_bytes, new_name)

    def link_from(self, source: BlobPlace, name: str, new_name: str) -> bool:
        """Link an object here, which counts as a write; see ``capabilities``."""
        if not (_is_whole(source, name) and isinstance(self._place, CanLink)):
            return False
        if not self._place.link_from(_bare(source), name, new_name):
            return False
        self._traffic.count(**{WRITES: 1})
        return True

    @contextmanager
    def together(self) -> Iterator[BlobPlace]:
        """Yield this place for new objects that become durable together, if it can do that; see ``capabilities``."""
        if not isinstance(self._place, CanWriteTogether):
            yield self
            return
        with self._place.together() as place:
            yield MeteredPlace(place, self._traffic, self._failpoints)

    def is_whole_object(self, name: str) -> bool:  # noqa: ARG002 - a subclass has others
        """Return whether ``name`` is an object of its own, which a service can copy."""
        return True

    def _note(self, kind: str, sent_bytes: int = 0) -> None:
        """Count a request that is about to be sent, and let it fail if a test wants that."""
        self._traffic.count(**{kind: 1, UP: sent_bytes})
        self._failpoints.hit(_BEFORE[kind])

    def is_exclusive(self) -> bool:
        """Return whether exactly one of several writers of one name succeeds; see ``exclusive``. Not counted."""
        return is_exclusive(self._place)

    def remove_empty_folders(self) -> None:
        """Remove empty folders; see the protocol."""
        self._note(LISTS)
        self._place.remove_empty_folders()

    def now_s(self) -> float:
        """Return the time of the place. Raises StorageError."""
        self._note(LISTS)
        return ask_time(self._place)

    def find_unfinished(self, older_than_s: float) -> builtins.list[Blob]:
        """Return the unfinished writes of dead writers; see the protocol."""
        self._note(LISTS)
        return self._place.find_unfinished(older_than_s)

    def discard_unfinished(self, older_than_s: float) -> int:
        """Remove the unfinished writes of dead writers; see the protocol."""
        self._note(LISTS)
        return self._place.discard_unfinished(older_than_s)


def _bare(place: BlobPlace) -> BlobPlace:
    """Return the place inside a metered one, or ``place`` itself."""
    return place._place if isinstance(place, MeteredPlace) else place  # noqa: SLF001


def _is_whole(source: BlobPlace, name: str) -> bool:
    return not isinstance(source, MeteredPlace) or source.is_whole_object(name)


class _MeteredSink:
    """A sink whose bytes are counted."""

    def __init__(self, sink: Sink, traffic: Traffic) -> None:
        self._sink, self._traffic = sink, traffic

    def write(self, data: bytes | memoryview, /) -> int:
        """Append ``data``."""
        self._traffic.count(**{UP: len(data)})
        return self._sink.write(data)
