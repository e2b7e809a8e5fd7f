"""How far the newest snapshot of a store lags: the deltas that a restore has to apply on top of it.

A restored store knows the lag from the listing of its restore. A new store knows it from the start. A store that
continues with local copies does not know it until its first maintenance has read a listing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.format.lineage import Lineage


@dataclass(frozen=True)
class SnapshotLag:
    """The deltas between the newest snapshot (version 0: none) and a version. ``since_s``: time of the oldest."""

    snapshot_version: int
    deltas: int
    delta_bytes: int
    since_s: float


class LagTracker:
    """Follows the commits and the snapshots of one store. Safe to use from many threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start with an unknown lag. ``clock`` returns the Unix time."""
        self._clock = clock
        self._lock = threading.Lock()
        self._snapshot: int | None = None
        self._commits: dict[int, tuple[int, float]] = {}

    def note_begin(self, base: Marker) -> None:
        """Note that a transaction begins on ``base``.

        The empty store has no snapshot below it. If ``base`` is below the known snapshot, the lag becomes unknown.
        """
        with self._lock:
            if base == EMPTY:
                self._snapshot, self._commits = 0, {}
            elif self._snapshot is not None and base.version < self._snapshot:
                self._snapshot = None

    def note_commit(self, version: int, size_bytes: int) -> None:
        """Note the delta of ``version``. Later versions belong to another line of history and are forgotten."""
        with self._lock:
            self._commits = {other: kept for other, kept in self._commits.items() if other < version}
            self._commits[version] = (size_bytes, self._clock())

    def note_snapshot(self, version: int) -> None:
        """Note that there now is a snapshot of ``version``."""
        with self._lock:
            self._snapshot = version
            self._commits = {other: kept for other, kept in self._commits.items() if other > version}

    def observe(self, lineage: Lineage, commit: Marker) -> None:
        """Learn the lag of ``commit`` from a listing."""
        base, steps = lineage.chain(commit, lambda marker: marker in lineage.snapshots or marker not in lineage.deltas)
        with self._lock:
            newer = {version: kept for version, kept in self._commits.items() if version > commit.version}
            blobs = {name.commit.version: lineage.deltas[name.commit][1] for name in steps}
            self._snapshot = base.version
            # Own commits keep the time of this host. A place may have another clock; no time is in the future.
            own, now_s = self._commits, self._clock()
            times = {version: own[version][1] if version in own else blob.modified_s for version, blob in blobs.items()}
            self._commits = {
                version: (blob.size_bytes, min(times[version], now_s)) for version, blob in blobs.items()
            } | newer

    def up_to(self, version: int) -> SnapshotLag | None:
        """Return the lag at ``version``, or None if it is not known."""
        with self._lock:
            if self._snapshot is None:
                return None
            commits = [kept for other, kept in self._commits.items() if self._snapshot < other <= version]
            since_s = min((written_s for _, written_s in commits), default=self._clock())
            return SnapshotLag(self._snapshot, len(commits), sum(size for size, _ in commits), since_s)
