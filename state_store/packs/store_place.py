"""The place of one store, which shows the store's commits in packs as the deltas that they are.

Whoever lists, reads or copies the deltas of a store does not see the difference. A delta in a pack is not deleted here:
``delete`` only stops showing it. Packs are deleted as a whole, see ``retention``.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Sequence
from pathlib import Path

from pyspark_ckpt.state_store.blobs import Blob, BlobPlace, MeteredPlace, Traffic
from pyspark_ckpt.state_store.blobs.metered import NO_FAIL_POINTS
from pyspark_ckpt.state_store.errors import NotFoundError
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.format.delta import UNKNOWN_ID, DeltaMeta, read_meta
from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.format.names import DeltaName, parse
from pyspark_ckpt.state_store.packs.slots import Slot, locate, pack_name, split_id

PIECE_BYTES = 8 << 20
CHAIN_KEPT = 64
"""How many commits before its own a delta names. The delta of the last one names those before."""
KNOWN_KEPT = 1 << 16
"""How many commits are known at a time. Retention forgets them earlier; what was forgotten is found again."""


class StorePlace(MeteredPlace):
    """A place that knows which commits of its store are in packs. Safe to use from many threads."""

    def __init__(
        self, place: BlobPlace, packs: BlobPlace, traffic: Traffic, failpoints: FailPoints = NO_FAIL_POINTS
    ) -> None:
        """Show what is in ``place``, and the deltas in ``packs`` that it is told of."""
        super().__init__(place, traffic, failpoints)
        self.packs = MeteredPlace(packs, traffic, failpoints)
        """The packs of the query, of all its stores."""
        self._lock = threading.Lock()
        self._slots: dict[Marker, tuple[Slot, float]] = {}
        self._parents: dict[Marker, Marker] = {}

    @property
    def bare(self) -> BlobPlace:
        """The folder of the store without commits in packs."""
        return self._place

    # --- what is known of the commits ---------------------------------------------------------------------------------

    def note(self, version: int, located: str, parent: Marker | None = None, at_s: float = 0.0) -> Marker:
        """Learn where a commit is from its id as Spark keeps it, and perhaps its parent. Return the commit.

        ``at_s``: when it was written, as Unix time. Makes no request.
        """
        plain, slot = split_id(located)
        commit = Marker(version, plain)
        with self._lock:
            if slot is not None:
                known = self._slots.get(commit)
                self._slots[commit] = (slot, at_s) if known is None or known[0] != slot else known
            if parent is not None:
                self._parents[commit] = parent
            for commits in (self._slots, self._parents):
                while len(commits) > KNOWN_KEPT:
                    del commits[next(iter(commits))]
        return commit

    def note_chain(self, commit: Marker, chain: Sequence[str]) -> bool:
        """Learn the commits before ``commit`` from their ids as Spark keeps them, newest first; return if any is new.

        Packs that are gone end the chain: a snapshot has replaced their commits, or another checkpoint had them. One
        listing shows which are there. Raises StorageError.
        """
        slots = [split_id(located)[1] for located in chain]
        oldest = max(0, commit.version - len(chain))
        there = {blob.name: blob.modified_s for blob in self.packs.list(start=f"{oldest:020d}")} if any(slots) else {}
        with self._lock:
            is_new = commit not in self._parents
        for located, slot in zip(chain, slots, strict=True):
            pack = "" if slot is None else pack_name(commit.version - 1, slot.pack)
            is_gone = slot is not None and pack not in there
            plain, at_s = split_id(located)[0], there.get(pack, 0.0)
            parent = self.note(commit.version - 1, plain if is_gone else located, at_s=at_s)
            with self._lock:
                self._parents[commit] = parent
            if is_gone:
                break
            is_new |= slot is not None
            commit = parent
        return is_new

    def knows(self, commit: Marker) -> bool:
        """Return whether a commit is shown: it is in a pack, and its parent is known."""
        with self._lock:
            return commit in self._slots and commit in self._parents

    def find_id(self, commit: Marker) -> str:
        """Return the id that Spark keeps of a commit."""
        with self._lock:
            return self._find_id(commit)

    def chain(self, commit: Marker, oldest: int) -> tuple[str, ...]:
        """Return the ids of ``commit`` and the commits before it as Spark keeps them, newest first.

        They end at version ``oldest``, at the first commit whose parent is not known here, or after ``CHAIN_KEPT``. The
        chain is empty if no commit of it is known to be in a pack.
        """
        found: list[str] = []
        is_packed = False
        with self._lock:
            at: Marker | None = commit
            while at is not None and at != EMPTY and at.version >= oldest and len(found) < CHAIN_KEPT:
                found.append(self._find_id(at))
                is_packed |= at in self._slots
                at = self._parents.get(at)
        return tuple(found) if is_packed else ()

    def _find_id(self, commit: Marker) -> str:
        slot = self._slots.get(commit)
        return locate(commit.id, None if slot is None else slot[0])

    def read_slot_meta(self, commit: Marker) -> DeltaMeta | None:
        """Read the metadata of a commit in a pack, whose parent may be unknown; None if it is in no known pack.

        Raises NotFoundError, FormatError, StorageError.
        """
        with self._lock:
            found = self._slots.get(commit)
        if found is None:
            return None
        unnamed = DeltaName(commit, Marker(commit.version - 1, UNKNOWN_ID))
        return read_meta(self, unnamed, found[0].size_bytes)

    def list_packed(self) -> builtins.list[Blob]:
        """Return the deltas in packs whose parents are known, in the order of their names."""
        with self._lock:
            found = [
                Blob(str(DeltaName(commit, self._parents[commit])), slot.size_bytes, at_s)
                for commit, (slot, at_s) in self._slots.items()
                if commit in self._parents
            ]
        return sorted(found, key=lambda blob: blob.name)

    def _slot_of(self, name: str) -> tuple[str, Slot] | None:
        """Return the pack of a delta, and where it is there; None for any other object."""
        delta = parse(name)
        if not isinstance(delta, DeltaName):
            return None
        with self._lock:
            found = self._slots.get(delta.commit)
        return None if found is None else (pack_name(delta.commit.version, found[0].pack), found[0])

    # --- the place ----------------------------------------------------------------------------------------------------

    def list(self, folder: str = "", prefix: str = "", start: str = "") -> builtins.list[Blob]:
        """Return the objects directly in ``folder``, and the deltas in packs; see the protocol."""
        found = super().list(folder, prefix, start)
        shown = (
            []
            if folder
            else [blob for blob in self.list_packed() if blob.name.startswith(prefix) and blob.name >= start]
        )
        return sorted([*found, *shown], key=lambda blob: blob.name) if shown else found

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return bytes ``start`` to ``end`` of the object or of the delta in a pack; see the protocol."""
        found = self._slot_of(name)
        if found is None:
            return super().get(name, start, end)
        pack, slot = found
        first = slot.start + min(start, slot.size_bytes)
        last = slot.start + (slot.size_bytes if end is None else min(end, slot.size_bytes))
        try:
            return self.packs.get(pack, first, max(first, last))
        except NotFoundError:  # retention has deleted it: it is shown no longer, like an object that is gone
            self._forget(name)
            raise

    def download(self, name: str, path: Path) -> int:
        """Copy the object or the delta in a pack into the new local file ``path``; see the protocol."""
        found = self._slot_of(name)
        if found is None:
            return super().download(name, path)
        size_bytes = found[1].size_bytes
        with path.open("xb") as target:
            for begin in range(0, size_bytes, PIECE_BYTES):
                target.write(self.get(name, begin, begin + PIECE_BYTES))
        return size_bytes

    def delete(self, name: str) -> None:
        """Remove the object, or show the delta in a pack no longer; see the protocol."""
        if not self._forget(name):
            super().delete(name)

    def _forget(self, name: str) -> bool:
        """Forget a commit by the name of its delta; return whether it was in a pack."""
        delta = parse(name)
        if not isinstance(delta, DeltaName):
            return False
        with self._lock:
            self._parents.pop(delta.commit, None)
            return self._slots.pop(delta.commit, None) is not None

    def where(self, name: str) -> str:
        """Return where an object is, for messages: in which bytes of which pack, if it is in one."""
        found = self._slot_of(name)
        if found is None:
            return f"{self.url}/{name}"
        pack, slot = found
        return f"{self.packs.url}/{pack} (bytes {slot.start} to {slot.start + slot.size_bytes}, for {self.url})"

    def is_whole_object(self, name: str) -> bool:
        """Return whether ``name`` is an object of its own, which a service can copy."""
        return self._slot_of(name) is None


def is_whole_object(place: BlobPlace, name: str) -> bool:
    """Return whether ``name`` is an object of its own in the place of a store, and no delta in a pack."""
    return not isinstance(place, StorePlace) or place.is_whole_object(name)
