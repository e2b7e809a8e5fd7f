"""A service of objects: buckets that never fail. ``s3_client`` has the way to them, and what befalls requests on it."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import merge

from botocore.exceptions import ClientError

from tests.labs.memory_place import MemoryPlace, MemoryService, Stored
from tests.simulation.flipped_bits import flip_bit
from tests.simulation.scheduler import START_S, Process, Scheduler
from tests.simulation.weather import CALM


@dataclass(frozen=True)
class S3Object(Stored):
    """One object: it is replaced, never changed."""

    metadata: Mapping[str, str]

    @property
    def etag(self) -> str:
        """Return the tag of the content."""
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


@dataclass
class Upload:
    """An upload in parts."""

    key: str
    initiated_s: float
    metadata: Mapping[str, str]
    parts: dict[int, S3Object] = field(default_factory=dict)


class ObjectService(MemoryService):
    """The buckets, which never fail. Objects are stamped to a second, as in S3."""

    def __init__(self, scheduler: Scheduler, seed: object, *, is_careless: bool = False) -> None:
        """Begin without objects. ``is_careless``: ignore the condition of a write."""
        super().__init__(lambda: float(int(START_S + scheduler.now_s)))
        self.scheduler = scheduler
        self.weather = CALM
        self._network = Process("network")
        self._is_careless = is_careless
        self._ghosts: dict[str, tuple[S3Object, float]] = {}
        """Objects that were deleted, and until when they are listed."""
        self.uploads: dict[str, Upload] = {}
        self.met: Counter[str] = Counter()
        """How many requests each fault has met."""
        self.draw = random.Random(f"service {seed}")
        self.on_change: Callable[[str, str], None] = lambda _verb, _key: None
        """Called after each change of an object, with what was done and its key."""

    def place(self, url: str) -> MemoryPlace:
        """Return the objects below a URL, past any fault."""
        return super().place(url.removeprefix("s3://"))

    def read(self, key: str) -> bytes:
        """Return the content of an object."""
        return self.objects[key].data

    def find(self, key: str) -> bytes | None:
        """Return the content of an object; None if there is none."""
        stored = self.objects.get(key)
        return None if stored is None else stored.data

    def unfinished(self, _url: str) -> list[str]:
        """Return the uploads, of any checkpoint, that nobody has ended."""
        return list(self.uploads)

    def put(self, key: str, data: bytes, metadata: Mapping[str, str], *, only_if_absent: bool = False) -> S3Object:
        """Write an object. Raises KeyError if it exists and must not."""
        if only_if_absent and key in self.objects and not self._is_careless:
            raise KeyError(key)
        stored = self.objects[key] = S3Object(data, self.clock(), metadata)
        self.on_change("put", key)
        return stored

    def delete(self, key: str) -> None:
        """Delete an object, if it is there."""
        if self.objects.pop(key, None) is not None:
            self.on_change("delete", key)

    def damage(self, key: str, draw: random.Random) -> None:
        """Change a bit of an object."""
        self.objects[key] = replace(self.objects[key], data=flip_bit(self.objects[key].data, draw))

    def leave_ghost(self, key: str, seconds: float) -> None:
        """Delete an object, and list it for so long all the same."""
        if key in self.objects:
            stored = self.objects[key]
            assert isinstance(stored, S3Object)
            self._ghosts[key] = stored, self.scheduler.now_s + seconds
        self.delete(key)

    def list_after(self, lead: str, after: str) -> Iterator[tuple[str, S3Object]]:
        """Yield the keys that begin with ``lead`` and what they name, in order, from ``after`` on."""
        now_s = self.scheduler.now_s
        self._ghosts = {key: ghost for key, ghost in self._ghosts.items() if ghost[1] > now_s}
        ghosts = [key for key in self._ghosts if key.startswith(lead) and key >= after and key not in self.objects]
        for key in merge(self.keys(lead, after), sorted(ghosts)):
            stored = self.objects[key] if key in self.objects else self._ghosts[key][0]
            assert isinstance(stored, S3Object)
            yield key, stored

    def later(self, seconds: float, effect: Callable[[], object]) -> None:
        """Let a request arrive after so long, whoever sent it."""

        def arrive() -> None:
            self.scheduler.sleep(seconds)
            try:
                effect()
            except (KeyError, ClientError):  # refused: nobody is there to be told
                return

        self.scheduler.spawn(arrive, "late request", self._network)
