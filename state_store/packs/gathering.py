"""Gather commits of several stores of a query that come at about the same time, and write them as one pack.

The first of them waits for the others a few milliseconds at most, and only as long as tasks are under way that may
commit. It then writes the pack for all. Whoever is alone writes a delta of its own, as if there were no packs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.format.delta import put_delta
from pyspark_ckpt.state_store.format.names import DeltaName
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.packs.pack import write_pack
from pyspark_ckpt.state_store.packs.slots import PACK_ID_DIGITS, Slot
from pyspark_ckpt.state_store.packs.store_place import StorePlace
from pyspark_ckpt.state_store.packs.tasks import MOST_WAIT_S, WAIT_SHARE, OpenTasks, WriteTimes, measure_write

PACKED_BYTES = 4 << 20
"""The largest delta that goes into a pack: until it is written, it is in memory."""
PACK_BYTES = 32 << 20
"""A pack is written at once when its deltas have so many bytes."""


@dataclass(eq=False)
class _Commit:
    identity: Identity
    name: DeltaName
    content: bytes
    is_taken: bool = False
    is_done: bool = False
    slot: Slot | None = None
    problem: BaseException | None = None


class Gathering:
    """Writes the packs of one query. Safe to use from many threads."""

    def __init__(self, tasks: OpenTasks, times: WriteTimes, make_id: Callable[[], str]) -> None:
        """Wait for ``tasks``. ``times`` knows how long requests to the place take; ``make_id`` returns random ids."""
        self._tasks = tasks
        self._times = times
        self._make_id = make_id
        self._changed = tasks.changed
        self._waiting: dict[int, list[_Commit]] = {}

    def write(self, place: StorePlace, identity: Identity, name: DeltaName, content: bytes) -> Slot | None:
        """Make a delta durable in a pack, with others of its version; return where it is.

        None if there are no others: then it is an object of its own in ``place``. Raises StorageError.
        """
        own, version = _Commit(identity, name, content), name.commit.version
        wait_s = min(MOST_WAIT_S, WAIT_SHARE * self._times.request_s)
        with self._changed:
            self._waiting.setdefault(version, []).append(own)
            self._changed.notify_all()
            self._changed.wait_for(lambda: own.is_taken or self._is_complete(version), wait_s)
            taken = [] if own.is_taken else self._waiting.pop(version)
            for commit in taken:
                commit.is_taken = True
        if len(taken) == 1:
            with measure_write(self._times, len(content)):
                put_delta(place, name, content)
            return None
        if taken:
            self._write_all(place.packs, version, taken)
        with self._changed:
            self._changed.wait_for(lambda: own.is_done)
        if own.problem is not None:
            raise own.problem
        return own.slot

    def _is_complete(self, version: int) -> bool:
        """Return whether nobody is left to wait for. A task commits its stores one after the other."""
        waiting = self._waiting[version]
        if sum(len(commit.content) for commit in waiting) >= PACK_BYTES:
            return True
        committing = {commit.identity.partition for commit in waiting}
        return not self._tasks.are_open(version, but_for=committing)

    def _write_all(self, packs: BlobPlace, version: int, commits: list[_Commit]) -> None:
        slots: list[Slot] = []
        problem: BaseException | None = None
        try:
            pack = self._make_id()[:PACK_ID_DIGITS]
            with measure_write(self._times, sum(len(each.content) for each in commits)):
                slots = write_pack(packs, version, pack, [(each.identity, each.name, each.content) for each in commits])
        except BaseException as raised:  # noqa: BLE001 - each of them raises it
            problem = raised
        with self._changed:
            for index, commit in enumerate(commits):
                commit.slot = slots[index] if slots else None
                commit.problem, commit.is_done = problem, True
            self._changed.notify_all()
