"""A place that does to every request what networks and services do, from one seed.

Two things are crossed: what happens to a request (nothing, all of it, all of it later, all of it twice) and what its
caller is told (the answer, an error that says "not applied", an error that says "unknown"). Left out is what no
storage could be trusted with: an answer for a write that is lost, "not applied" for one that is there.

============  ===============  =======================================================================
fault         told             what happens
============  ===============  =======================================================================
slow_down     not applied      nothing
lost_before   unknown          nothing
lost_after    unknown          it happens
late          unknown          it happens within ``LATE_S``, perhaps after the caller has tried again
twice         answer           it happens, and a copy of the request is delivered within ``LATE_S``
doubled       second answer    it happens twice: a conditional write conflicts with itself
truncated     answer           the body is cut
corrupted     answer           a bit of the body is flipped
ghost         answer           an object is deleted, and listed for up to ``LATE_S`` all the same
slow          answer           it happens, and takes up to ``LATE_S``
============  ===============  =======================================================================

Which fault meets a request follows from the seed, the step, who asks for which object and how often: threads may run
in any order. Listings are complete for writes that returned, as the protocol of places promises.
"""

from __future__ import annotations

import builtins
import io
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeVar

from pyspark_ckpt.state_store.blobs import Blob, BlobPlace, Sink
from pyspark_ckpt.state_store.errors import ConflictError, StorageError

LATE_S = 40.0
WRITE_FAULTS = frozenset({"slow_down", "lost_before", "lost_after", "late", "twice", "doubled", "slow"})
READ_FAULTS = frozenset({"slow_down", "slow"})
BODY_FAULTS = frozenset({"truncated", "corrupted"})
DELETE_FAULTS = WRITE_FAULTS - {"doubled"} | {"ghost"}
KINDS = tuple(sorted(WRITE_FAULTS | BODY_FAULTS | DELETE_FAULTS))
FAILURES = frozenset({"slow_down", "lost_before", "lost_after", "late", "expired", "killed"})

_NAMES_ITS_WRITER = re.compile(r"(\d{20}-|sst/)(.*)(\.delta|\.snapshot|\.sst)")

T = TypeVar("T")


@dataclass(frozen=True)
class Weather:
    """Which faults may meet a request, and how probable one is."""

    chance: float = 0.0
    kinds: tuple[str, ...] = ()


CALM = Weather()


class Network:
    """What all executors share: the clock, the weather, and requests that are still on their way."""

    def __init__(self, seed: object) -> None:
        """Draw everything from ``seed``."""
        self.seed = seed
        self.step = 0
        self.weather = CALM
        self.is_expired = False
        self.events: list[str] = []
        self.lock = threading.RLock()
        self._now = 1_700_000_000.0
        self._late: list[tuple[float, Callable[[], object]]] = []
        self._labels: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def clock(self) -> float:
        """The time of all servers and places."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass, and what is due arrive."""
        with self.lock:
            self._now += seconds
            due = [entry for entry in self._late if entry[0] <= self._now]
            self._late = [entry for entry in self._late if entry[0] > self._now]
        for _, effect in sorted(due, key=lambda entry: entry[0]):
            with suppress(ConflictError):
                effect()

    def later(self, seconds: float, effect: Callable[[], object]) -> None:
        """Let ``effect`` happen when so much time has passed."""
        with self.lock:
            self._late.append((self._now + seconds, effect))

    def tell(self, event: str) -> None:
        """Write a line of the schedule."""
        with self.lock:
            self.events.append(event)

    def label(self, name: str) -> str:
        """``name`` without what is random in it: the same in every run of one seed."""
        match = _NAMES_ITS_WRITER.fullmatch(name)
        if match is None:
            return name
        with self.lock:
            kind = match[3][1:]
            if name not in self._labels:
                self._counts[kind] += 1
                version = f"@{int(match[1][:20])}" if match[1] != "sst/" else ""
                self._labels[name] = f"{kind}{version}#{self._counts[kind]}"
            return self._labels[name]

    def draw(self, *what: object) -> random.Random:
        """Randomness of one request of this step."""
        with self.lock:
            key = f"{self.seed}/{self.step}/{'/'.join(map(str, what))}"
            self._counts[key] += 1
            return random.Random(f"{key}/{self._counts[key]}")


@dataclass
class Link:
    """One executor's way to its places. ``met`` are the faults since somebody last emptied it.

    ``at_pass`` is called once, at the ``passes_left``-th point of a call: around a request, or at a fail point.
    ``at_each_pass`` is called at all of them. Only ``thread`` counts, which makes the calls, so that the order of the
    points is that of the program.
    """

    network: Network
    who: str
    is_dead: bool = False
    is_dying: bool = False
    met: set[str] = field(default_factory=set)
    at_each_pass: Callable[[], None] | None = None
    at_pass: Callable[[], None] | None = None
    passes_left: int = 0
    thread: int = field(default_factory=threading.get_ident)

    def pass_by(self) -> None:
        """Be at a point where something else may happen first."""
        if threading.get_ident() != self.thread:
            return
        if self.at_each_pass is not None:
            self.at_each_pass()
        if self.at_pass is None:
            return
        self.passes_left -= 1
        if self.passes_left <= 0:
            happens, self.at_pass = self.at_pass, None
            happens()

    def meet(self, operation: str, name: str, possible: frozenset[str]) -> tuple[str, random.Random]:
        """The fault of one request ("" for none), and randomness for its details. Raises StorageError."""
        self.network.advance(0)
        self.pass_by()
        draw = self.network.draw(self.who, operation, self.network.label(name))
        if self.is_dead or (self.is_dying and threading.get_ident() == self.thread):
            self.fail("killed", operation, name)
        if self.is_dying:  # some threads were quicker than the end
            return self._met(draw.choice(("lost_before", "lost_after")), operation, name), draw
        if self.network.is_expired:
            self.fail("expired", operation, name)
        kinds = [kind for kind in self.network.weather.kinds if kind in possible]
        if not kinds or draw.random() >= self.network.weather.chance:
            return "", draw
        fault = self._met(draw.choice(kinds), operation, name)
        if fault == "slow":
            self.network.advance(draw.uniform(0, LATE_S / 4))
        if fault == "slow_down":
            self.fail(fault, operation, name)
        return fault, draw

    def fail(self, fault: str, operation: str, name: str, outcome: str = "not_applied") -> NoReturn:
        """Tell the caller of a request that it failed."""
        self.met.add(fault)
        raise StorageError(
            f"Could not {operation} {name}: {fault}.", outcome="unknown" if outcome == "unknown" else "not_applied"
        )

    def _met(self, fault: str, operation: str, name: str) -> str:
        self.met.add(fault)
        self.network.tell(f"      {self.who} {operation} {self.network.label(name)}: {fault}")
        return fault


class FaultyPlace:
    """Another place behind a faulty network; see the module."""

    def __init__(self, inner: BlobPlace, link: Link) -> None:
        """Pass requests on to ``inner`` over ``link``."""
        self._inner = inner
        self._link = link
        self._network = link.network
        self._ghosts: dict[str, tuple[Blob, float]] = {}

    @property
    def url(self) -> str:
        """Where the place is."""
        return self._inner.url

    @contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        """Write a new object; see the protocol. The write is one request, made at the end."""
        buffer = io.BytesIO()
        yield buffer
        self._write("create", name, lambda: self._create(name, buffer.getvalue()))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write ``data`` unless ``name`` exists; see the protocol."""
        return self._write("put_if_absent", name, lambda: self._inner.put_if_absent(name, data))

    def put(self, name: str, data: bytes) -> None:
        """Write ``data``, replacing what was there; see the protocol."""
        self._write("put", name, lambda: self._inner.put(name, data))

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes of the object; see the protocol."""
        return self._read("get", name, lambda: self._inner.get(name, start, end))

    def download(self, name: str, path: Path) -> int:
        """Copy the object into a local file; see the protocol."""
        content = self._read("download", name, lambda: self._inner.get(name))
        try:
            path.write_bytes(content)
        except OSError as problem:
            raise StorageError(f"Could not copy {name} into {path}: {problem}.") from problem
        return len(content)

    def list(self, folder: str = "", prefix: str = "", start: str = "") -> list[Blob]:
        """Objects directly in ``folder``; see the protocol. What was deleted may be among them for a while."""
        self._link.meet("list", folder, READ_FAULTS)
        found = {blob.name: blob for blob in self._inner.list(folder, prefix, start)}
        for name, (blob, until) in list(self._ghosts.items()):
            home, _, last = name.rpartition("/")
            if until > self._network.clock() and home == folder and last.startswith(prefix) and last >= start:
                found.setdefault(name, blob)
        self._link.pass_by()
        return sorted(found.values(), key=lambda blob: blob.name)

    def walk(self, folder: str = "") -> builtins.list[Blob]:
        """All objects below ``folder``; see the protocol."""
        self._link.meet("walk", folder, READ_FAULTS)
        found = self._inner.walk(folder)
        self._link.pass_by()
        return found

    def delete(self, name: str) -> None:
        """Remove the object; see the protocol."""
        self._write("delete", name, lambda: self._inner.delete(name), DELETE_FAULTS)

    def remove_empty_folders(self) -> None:
        """Remove the folders in which nothing is; see the protocol."""
        self._link.meet("remove_empty_folders", "", READ_FAULTS)
        self._inner.remove_empty_folders()

    def find_unfinished(self, older_than_s: float) -> builtins.list[Blob]:
        """What writers left half-written; see the protocol."""
        self._link.meet("unfinished", "", READ_FAULTS)
        return self._inner.find_unfinished(older_than_s)

    def discard_unfinished(self, older_than_s: float) -> int:
        """Remove what writers left half-written; see the protocol."""
        self._link.meet("discard_unfinished", "", READ_FAULTS)
        return self._inner.discard_unfinished(older_than_s)

    def _write(self, operation: str, name: str, effect: Callable[[], T], possible: frozenset[str] = WRITE_FAULTS) -> T:
        fault, draw = self._link.meet(operation, name, possible)
        if fault == "ghost":
            home, _, last = name.rpartition("/")
            for blob in self._inner.list(home, last):
                self._ghosts[blob.name] = blob, self._network.clock() + draw.uniform(0, LATE_S)
        if fault == "late":
            self._network.later(draw.uniform(0, LATE_S), effect)
        if fault in ("lost_after", "doubled"):
            with suppress(ConflictError):
                effect()
        if fault in ("lost_before", "lost_after", "late"):
            self._link.pass_by()
            self._link.fail(fault, operation, name, "unknown")
        result = effect()
        if fault == "twice":
            self._network.later(draw.uniform(0, LATE_S), effect)
        self._link.pass_by()
        if self._link.is_dead:
            self._link.fail("killed", operation, name, "unknown")
        return result

    def _read(self, operation: str, name: str, read: Callable[[], bytes]) -> bytes:
        is_ours = not name.startswith("commits/")  # nobody could tell that Spark's own log is damaged
        fault, draw = self._link.meet(operation, name, READ_FAULTS | BODY_FAULTS if is_ours else READ_FAULTS)
        if fault in ("lost_before", "lost_after"):
            self._link.fail(fault, operation, name)
        content = read()
        if fault == "truncated" and content:
            content = content[: draw.randrange(len(content))]
        if fault == "corrupted" and content:
            at = draw.randrange(len(content))
            content = content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]
        self._link.pass_by()
        return content

    def _create(self, name: str, data: bytes) -> None:
        with self._inner.create(name) as sink:
            sink.write(data)
