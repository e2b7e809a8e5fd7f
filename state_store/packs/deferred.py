"""Packs that become durable after their commits were answered: ``durability=batch``.

A commit is answered as soon as its delta is in memory, with its place in a pack that is still open. The pack is closed
and written when no task is under way that may add to it. The driver commits the batch only when all its packs are
durable, so nothing is acknowledged before.

Deltas that are not yet written take at most ``WAITING_BYTES`` of memory. Beyond that, a commit waits.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.errors import LifecycleError
from pyspark_ckpt.state_store.failpoints import BEFORE_PACK, FailPoints
from pyspark_ckpt.state_store.format.names import DeltaName
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.packs.pack import write_pack
from pyspark_ckpt.state_store.packs.slots import PACK_ID_DIGITS, Slot
from pyspark_ckpt.state_store.packs.store_place import StorePlace
from pyspark_ckpt.state_store.packs.tasks import MOST_WAIT_S, WAIT_SHARE, OpenTasks, WriteTimes, measure_write

PACK_BYTES = 16 << 20
"""A pack is closed when its deltas have so many bytes."""
WAITING_BYTES = 64 << 20
MOST_IDLE_S = 0.2
"""A pack to which nothing was added for so long is closed, although there are tasks that may add to it."""
ENDED_KEPT = 1024


@dataclass(eq=False)
class _Pack:
    """A pack that is open, or is being written, or was."""

    id: str
    version: int
    place: BlobPlace
    deltas: list[tuple[Identity, DeltaName, bytes]] = field(default_factory=list)
    size_bytes: int = 0
    added_s: float = 0.0
    is_done: bool = False
    problem: BaseException | None = None


class KnownPacks:
    """The packs of a process that are durable later, of all queries. Safe to use from many threads."""

    def __init__(self) -> None:
        """Know of none."""
        self._changed = threading.Condition(threading.Lock())
        self._packs: OrderedDict[str, _Pack] = OrderedDict()

    def add(self, pack: _Pack) -> None:
        """Add a pack. The oldest ones that were written long ago are forgotten."""
        with self._changed:
            self._packs[pack.id] = pack
            while len(self._packs) > ENDED_KEPT and next(iter(self._packs.values())).is_done:
                self._packs.popitem(last=False)

    def end(self, pack: _Pack, problem: BaseException | None) -> None:
        """Note that a pack is durable, or why not."""
        with self._changed:
            pack.problem, pack.is_done = problem, True
            self._changed.notify_all()

    def await_pack(self, pack_id: str) -> None:
        """Return when a pack is durable. Raises its failure; LifecycleError if it is not known."""
        with self._changed:
            pack = self._packs.get(pack_id)
            if pack is None:
                raise LifecycleError(f"Pack {pack_id} is not one of this state server.")
            self._changed.wait_for(lambda: pack.is_done)
        if pack.problem is not None:
            raise pack.problem


class DeferredPacks:
    """The packs of one query that are durable later. Safe to use from many threads."""

    def __init__(
        self,
        tasks: OpenTasks,
        times: WriteTimes,
        writers: Executor,
        make_id: Callable[[], str],
        known: KnownPacks,
        failpoints: FailPoints,
    ) -> None:
        """Write each pack in a thread of ``writers``, when no task is left that may add to it.

        ``known`` tells others when a pack is durable.
        """
        self._failpoints = failpoints
        self._known = known
        self._tasks = tasks
        self._times = times
        self._writers = writers
        self._make_id = make_id
        self._changed = tasks.changed
        self._open: dict[int, _Pack] = {}
        self._waiting_bytes = 0

    def add(self, place: StorePlace, identity: Identity, name: DeltaName, content: bytes) -> Slot:
        """Add a delta to a pack, which becomes durable later; return where it will be. Raises LifecycleError."""
        version, size = name.commit.version, len(content)
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting_bytes or self._waiting_bytes + size <= WAITING_BYTES)
            pack = self._open.get(version)
            if pack is None or pack.size_bytes + size > PACK_BYTES:
                pack = self._begin(version, place.packs)
            slot = Slot(pack.id, pack.size_bytes, size)
            pack.deltas.append((identity, name, content))
            pack.size_bytes += size
            pack.added_s = time.monotonic()
            self._waiting_bytes += size
            self._changed.notify_all()
            return slot

    def _begin(self, version: int, place: BlobPlace) -> _Pack:
        pack = _Pack(self._make_id()[:PACK_ID_DIGITS], version, place)
        try:
            self._writers.submit(self._write, pack)
        except RuntimeError as problem:
            raise LifecycleError("The state server is ending.", retryable=True) from problem
        self._open[version] = pack
        self._known.add(pack)
        return pack

    def _write(self, pack: _Pack) -> None:
        """Wait until nothing more is added to a pack, then make it durable."""
        with self._changed:
            self._await_end(pack)
            if self._open.get(pack.version) is pack:
                del self._open[pack.version]
        failure: BaseException | None = None
        try:
            self._failpoints.hit(BEFORE_PACK)
            with measure_write(self._times, pack.size_bytes):
                write_pack(pack.place, pack.version, pack.id, pack.deltas)
        except BaseException as problem:  # noqa: BLE001 - whoever waits for the pack raises it
            failure = problem
        self._known.end(pack, failure)
        with self._changed:
            pack.deltas.clear()
            self._waiting_bytes -= pack.size_bytes
            self._changed.notify_all()

    def _await_end(self, pack: _Pack) -> None:
        """Wait until a pack is to be closed. The caller holds the lock."""
        linger_s = min(MOST_WAIT_S, WAIT_SHARE * self._times.request_s)
        while self._open.get(pack.version) is pack and pack.size_bytes < PACK_BYTES:
            if self._waiting_bytes >= WAITING_BYTES:
                return
            quiet_s = linger_s if not self._tasks.are_open(pack.version) else MOST_IDLE_S
            left_s = pack.added_s + quiet_s - time.monotonic()
            if pack.added_s and left_s <= 0:
                return
            self._changed.wait(left_s if pack.added_s else None)
