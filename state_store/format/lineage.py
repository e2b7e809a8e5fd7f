"""Which versions of a store exist remotely, and how they descend from each other, from one listing.

Two attempts at the same version are siblings: the graph is a tree that grows from version 0. Everything here is read
from object names. No object is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from pyspark_ckpt.state_store.blobs import Blob, BlobPlace
from pyspark_ckpt.state_store.errors import NotFoundError
from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.format.names import DeltaName, ReplacedName, WinnerName, parse, snapshot_name

SHOWN = 5
"""How many snapshots a message names: the newest ones."""


@dataclass
class Lineage:
    """The deltas, snapshots and winners in the remote folder of one store, and what says which are replaced."""

    deltas: dict[Marker, tuple[DeltaName, Blob]] = field(default_factory=dict)
    snapshots: dict[Marker, Blob] = field(default_factory=dict)
    winners: dict[WinnerName, Blob] = field(default_factory=dict)
    replaced: dict[ReplacedName, Blob] = field(default_factory=dict)
    where: str = "the state folder"
    """The place that was listed, for messages."""

    @classmethod
    def of(cls, blobs: Iterable[Blob], lead: str = "") -> Lineage:
        """Build the graph from a listing, whose names begin with ``lead``. Foreign names are ignored."""
        found = cls()
        found.add(blobs, lead)
        return found

    @classmethod
    def read(cls, place: BlobPlace) -> Lineage:
        """List the folder, with one request for each page of the listing."""
        found = cls.of(place.list())
        found.where = place.url
        return found

    def add(self, blobs: Iterable[Blob], lead: str = "") -> None:
        """Add objects of the same folder, whose names begin with ``lead``. Foreign names are ignored."""
        for blob in blobs:
            name = parse(blob.name.removeprefix(lead))
            if isinstance(name, DeltaName):
                self.deltas[name.commit] = (name, blob)
            elif isinstance(name, WinnerName):
                self.winners[name] = blob
            elif isinstance(name, ReplacedName):
                self.replaced[name] = blob
            elif isinstance(name, Marker):
                self.snapshots[name] = blob

    @property
    def is_empty(self) -> bool:
        """Return whether there is no version at all."""
        return not self.deltas and not self.snapshots

    def has_lost(self, later: Lineage) -> bool:
        """Return whether a delta or a snapshot of this listing is missing in a ``later`` one."""
        return not (self.deltas.keys() <= later.deltas.keys() and self.snapshots.keys() <= later.snapshots.keys())

    def list_commits(self, version: int) -> list[Marker]:
        """Return every commit of ``version`` that has a delta or a snapshot, sorted by id."""
        return sorted({marker for marker in (*self.deltas, *self.snapshots) if marker.version == version})

    def require(self, commit: Marker, store: str) -> None:
        """Check that ``commit`` exists.

        Raises NotFoundError if its version was never committed or is retired, or was committed only with other ids.
        """
        if commit == EMPTY or commit in self.deltas or commit in self.snapshots:
            return
        siblings = self.list_commits(commit.version)
        if siblings:
            raise NotFoundError(
                f"{store}: {commit} does not exist in {self.where}; version {commit.version} was committed as "
                + ", ".join(sibling.id for sibling in siblings)
                + ".",
                hint="The commit log names an attempt that is not in the state folder. Check that the state and the "
                "commit log are from one checkpoint.",
            )
        if commit.version > self.newest_version:
            raise NotFoundError(
                f"{store}: {commit} was never committed, or its objects are lost: {self.describe()}.",
                hint="Retention cannot have deleted it, because it keeps the newest versions. Check that the state and "
                "the commit log are from one checkpoint. If objects are lost, restore them from a backup of the "
                "checkpoint.",
            )
        raise NotFoundError(
            f"{store}: {commit} was never committed, or retention has retired it: {self.describe()}.",
            hint="Check that the state and the commit log are from one checkpoint. Raise "
            "spark.sql.streaming.minBatchesToRetain to keep more versions.",
        )

    def can_restore(self, commit: Marker) -> bool:
        """Return whether there is a snapshot (or the empty store), and each delta from it to ``commit``."""
        return next(self.chains(commit, self.snapshots.__contains__), None) is not None

    def is_lost(self, newest: Marker) -> bool:
        """Return whether ``newest``, on which a query commits, can no longer be restored.

        The next commit must be there, and none after it. Otherwise the objects were not lost: the checkpoint was moved
        away, perhaps replaced, or another process has continued and has retired ``newest``.
        """
        if any(marker.version > newest.version + 1 for marker in (*self.deltas, *self.snapshots)):
            return False
        goes_on = any(name.parent == newest for name, _ in self.deltas.values())
        return goes_on and not self.can_restore(newest)

    def describe(self) -> str:
        """Return which versions and snapshots there are, and where."""
        if self.is_empty:
            return f"{self.where} has no version at all"
        versions = sorted({marker.version for marker in (*self.deltas, *self.snapshots)})
        kept = sorted({marker.version for marker in self.snapshots})[-SHOWN:]
        snapshots = f"snapshots of {', '.join(map(str, kept))}" if kept else "no snapshot"
        span = f"version {versions[0]}" if len(versions) == 1 else f"versions {versions[0]} to {versions[-1]}"
        return f"{self.where} has {span}, and {snapshots}"

    @property
    def newest_version(self) -> int:
        """The newest version, committed or not; 0 if there is none."""
        return max((marker.version for marker in (*self.deltas, *self.snapshots)), default=0)

    def chain(self, commit: Marker, is_base: Callable[[Marker], bool]) -> tuple[Marker, list[DeltaName]]:
        """Walk back from ``commit`` to the nearest base. Returns the base and the deltas after it, oldest first.

        Version 0 is always a base. Raises NotFoundError if the chain breaks. Its message names the commit whose delta
        is missing.
        """
        nearest = next(self.chains(commit, is_base), None)
        if nearest is None:
            raise self.find_break(commit)
        return nearest

    def chains(self, commit: Marker, is_base: Callable[[Marker], bool]) -> Iterator[tuple[Marker, list[DeltaName]]]:
        """Yield each base from which ``commit`` can be made, with the deltas after it, oldest first; as ``chain`` does.

        The nearest base comes first: each further one is older and needs more deltas. Version 0, which is always a
        base, comes last. It is not reached if an earlier delta is missing: ``find_break`` says which one.
        """
        steps: list[DeltaName] = []
        for at in self.walk(commit):
            if at == EMPTY or is_base(at):
                yield at, steps[::-1]
            if at in self.deltas:
                steps.append(self.deltas[at][0])

    def find_break(self, commit: Marker) -> NotFoundError:
        """Return the error that names the commit whose delta is missing between version 0 and ``commit``."""
        *_, at = self.walk(commit)
        return NotFoundError(
            f"The delta of {at} is missing, but {commit} needs it ({snapshot_name(at)} is not usable either): "
            f"{self.describe()}.",
            hint="Restore the file from a backup of the checkpoint.",
        )

    def ancestors(self, commit: Marker) -> set[Marker]:
        """Return ``commit`` and all its ancestors, as far back as there are deltas."""
        return set(self.walk(commit))

    def walk(self, commit: Marker) -> Iterator[Marker]:
        """Yield ``commit`` and its ancestors, newest first, as far back as there are deltas."""
        at = commit
        yield at
        while at in self.deltas:
            at = self.deltas[at][0].parent
            yield at
