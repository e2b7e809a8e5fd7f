"""Delete what nobody can ask for any more.

Kept are: the versions Spark may still ask for (``min_versions_to_retain`` below the newest one that Spark
is known to have committed, and everything above) and those that are pinned, the newest complete snapshot at or
below the oldest of them, on their lineage, all deltas from that snapshot on, and every table file that a
remaining manifest refers to.
Siblings that lost are kept until their version is older than that: only then has the commit log decided.

The order makes a crash harmless: first manifests, then deltas and winners, then table files; a manifest
never refers to a deleted file. A table file goes only after two looks, a grace period apart in this
process, both found it unreachable, and if it is older than the grace period itself: a snapshot that another
process makes within that time is not hit. One that takes longer may be, and its manifest may appear all the
same; so nothing below a snapshot goes before all its table files were seen, a while after its manifest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass

from pyspark_ckpt.state_store.blobs import Blob, BlobPlace
from pyspark_ckpt.state_store.errors import CkptError
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.keys import Marker
from pyspark_ckpt.state_store.lineage import Lineage
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.manifest import decode
from pyspark_ckpt.state_store.names import TABLE_FOLDER, is_table_object, snapshot_name
from pyspark_ckpt.state_store.pins import Pins

UPLOAD_S = 60.0
"""A temporary file younger than this may be an upload in progress, whatever the grace period."""

SETTLED_S = 60.0
"""A clean-up that began before a manifest appeared has ended by this age (or the grace period, if shorter)."""


@dataclass(frozen=True)
class Retired:
    """Objects to delete, in the order of deletion; the names within one list may go in parallel."""

    manifests: list[str]
    commits: list[str]


@dataclass(frozen=True)
class Garbage:
    """Objects that nobody can ask for any more, in the order of deletion."""

    blobs: tuple[Blob, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all of them."""
        return sum(blob.size_bytes for blob in self.blobs)


def retired(lineage: Lineage, newest: Marker, oldest: int, is_base: Callable[[Marker], bool]) -> Retired:
    """Manifests, deltas and winners that no retained version needs; nothing is deleted here.

    ``newest`` is the last commit that Spark has asked for, ``oldest`` the first version to keep; ``is_base`` says
    whether a snapshot can replace everything below it.
    """
    ancestors = lineage.ancestors(newest)
    snapshots = sorted((m for m in lineage.snapshots if m in ancestors and m.version <= oldest), reverse=True)
    base = next(filter(is_base, snapshots), None)
    if base is None:
        return Retired([], [])
    losers = {m for m in (*lineage.deltas, *lineage.snapshots) if m.version < oldest and m not in ancestors}
    return Retired(
        manifests=[snapshot_name(m) for m in lineage.snapshots if m.version < base.version or m in losers],
        commits=[str(name) for m, (name, _) in lineage.deltas.items() if m.version <= base.version or m in losers]
        + [str(name) for name in lineage.winners if name.version < base.version],
    )


class Retention:
    """Cleans up behind one store."""

    def __init__(
        self,
        place: BlobPlace,
        pins: Pins,
        grace_s: float,
        pool: Executor,
        failpoints: FailPoints,
        log: StoreLog,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Delete in ``place`` with the threads of ``pool``."""
        self._place = place
        self._pins = pins
        self._grace_s = grace_s
        self._pool = pool
        self._failpoints = failpoints
        self._log = log
        self._clock = clock
        self._unreachable_since: dict[str, float] = {}
        self._objects: dict[Blob, set[str]] = {}
        self._cleaned: tuple[Marker, int] | None = None

    def clean(self, newest: Marker, min_versions: int) -> int:
        """Delete what is retired; returns the number of objects. Raises StorageError.

        A failure in the middle leaves objects too many, never one too few; the next call goes on.
        Costs nothing when nothing was committed and no snapshot made since the last call.
        """
        if self._cleaned == (newest, min_versions) and not self._unreachable_since:
            return 0
        lineage, listed = self._listings()
        gone = self._retired(lineage, listed, newest, min_versions)
        count = self._delete(gone.manifests) + self._delete(gone.commits)
        tables = self._unreachable_tables(listed)
        count += self._delete(tables)
        for name in tables:
            del self._unreachable_since[name]
        count += self._place.discard_unfinished(max(self._grace_s, UPLOAD_S))
        self._cleaned = (newest, min_versions)
        return count

    def find(self, newest: Marker, min_versions: int) -> Garbage:
        """What ``clean`` would delete, table files after two looks a grace period apart. Raises StorageError.

        Nothing is deleted, but pins that have ended.
        """
        lineage, listed = self._listings()
        gone = self._retired(lineage, listed, newest, min_versions)
        blobs = {blob.name: blob for _, blob in lineage.deltas.values()}
        blobs |= {blob.name: blob for blob in (*lineage.snapshots.values(), *lineage.winners.values())}
        kept = [blob for blob in lineage.snapshots.values() if blob.name not in gone.manifests]
        reachable = self._reachable(kept) if listed else set()
        now = self._clock()
        unreachable = [
            blob for blob in listed if reachable is not None and blob.name not in reachable and self._is_old(blob, now)
        ]
        return Garbage((*(blobs[name] for name in (*gone.manifests, *gone.commits)), *unreachable))

    @property
    def is_waiting(self) -> bool:
        """Whether table files were seen unreachable that may go a grace period later."""
        return bool(self._unreachable_since)

    def look_again(self) -> None:
        """Let the next ``clean`` look even if nothing was committed: a snapshot may have made more of it retired."""
        self._cleaned = None

    def _listings(self) -> tuple[Lineage, list[Blob]]:
        """All commits and snapshots, then all table files."""
        lineage = Lineage.read(self._place)
        return lineage, [blob for blob in self._place.list(TABLE_FOLDER) if is_table_object(blob.name)]

    def _retired(self, lineage: Lineage, listed: list[Blob], newest: Marker, min_versions: int) -> Retired:
        pinned = self._pins.oldest()
        oldest = newest.version - min_versions
        names = {blob.name for blob in listed}
        return retired(
            lineage,
            newest,
            oldest if pinned is None else min(oldest, pinned),
            lambda marker: self._is_base(lineage.snapshots[marker], names),
        )

    def _is_base(self, manifest: Blob, listed: set[str]) -> bool:
        """Whether a snapshot has stood for a while with all its table files; they were listed after it."""
        if self._clock() - manifest.modified_s < min(self._grace_s, SETTLED_S):
            return False
        try:
            missing = sorted(self._objects_of(manifest) - listed)
        except CkptError as problem:
            self._log.warning("what is below a snapshot that cannot be read is kept: %s", problem)
            return False
        if missing:
            self._log.warning("what is below snapshot %s is kept: it lacks %s", manifest.name, ", ".join(missing))
        return not missing

    def _unreachable_tables(self, tables: list[Blob]) -> list[str]:
        """Of all table files, those that were seen unreachable a grace period ago and still are."""
        # After the listing: a new manifest is seen.
        reachable = self._reachable(Lineage.read(self._place).snapshots.values()) if tables else set()
        if reachable is None:
            return []
        now = self._clock()
        since = {
            blob.name: self._unreachable_since.get(blob.name, now) for blob in tables if blob.name not in reachable
        }
        self._unreachable_since = since
        return [blob.name for blob in tables if blob.name in since and self._is_due(blob, since[blob.name], now)]

    def _is_due(self, blob: Blob, since: float, now: float) -> bool:
        return now - since >= self._grace_s and self._is_old(blob, now)

    def _is_old(self, blob: Blob, now: float) -> bool:
        return now - blob.modified_s >= self._grace_s

    def _reachable(self, manifests: Iterable[Blob]) -> set[str] | None:
        """Every table file that one of them refers to; None if a manifest cannot be read, for then nobody knows."""
        known = {}
        for manifest in manifests:
            try:
                known[manifest] = self._objects_of(manifest)
            except CkptError as problem:
                self._log.warning("no table file is deleted while a snapshot cannot be read: %s", problem)
                return None
        self._objects = known
        return set().union(*known.values())

    def _objects_of(self, manifest: Blob) -> set[str]:
        """Table files of a manifest, which is read once: by age and size, for its name may have been used before."""
        if manifest not in self._objects:
            content = self._place.get(manifest.name)
            self._objects[manifest] = set(decode(content, f"{self._place.url}/{manifest.name}").objects())
        return self._objects[manifest]

    def _delete(self, names: Iterable[str]) -> int:
        todo = list(names)
        if todo:
            self._failpoints.hit("cleanup.before_delete")
        failed: list[CkptError] = []
        for name, problem in zip(todo, self._pool.map(self._try_delete, todo), strict=True):
            if problem is not None:
                self._log.warning("could not delete %s: %s", name, problem)
                failed.append(problem)
        if failed:
            raise failed[0]
        return len(todo)

    def _try_delete(self, name: str) -> CkptError | None:
        try:
            self._place.delete(name)
        except CkptError as problem:
            return problem
        return None
