"""Metrics of a store's commits: times in milliseconds, and figures of the upkeep that goes on between them."""

from __future__ import annotations

import threading
import time
from collections import Counter

from pyspark_ckpt.state_store.snapshots.lag import LagTracker
from pyspark_ckpt.state_store.snapshots.policy import SnapshotPolicy
from pyspark_ckpt.state_store.transactions.local_side import LocalSide


class ScrubCounts:
    """Counts of scrubbed objects, that is of stored objects that were re-read. Safe to use from many threads."""

    def __init__(self) -> None:
        """Start at zero."""
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._damaged = 0

    def count(self, *, scrubbed: int = 0, healed: int = 0) -> None:
        """Add numbers of objects that were re-read and that were repaired."""
        with self._lock:
            self._counts.update(scrubbed_objects=scrubbed, healed_objects=healed)

    def note_damaged(self, objects: int) -> None:
        """Set how many objects are damaged now."""
        with self._lock:
            self._damaged = objects

    def take(self) -> dict[str, int]:
        """Return how many objects were re-read and repaired since the last call, and how many are damaged now."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
            return {
                **{name: counts[name] for name in ("scrubbed_objects", "healed_objects")},
                "damaged_objects": self._damaged,
            }


class UpkeepMetrics:
    """Figures of one store's table files, of damage, and of the cost of a restore."""

    def __init__(self, local: LocalSide, lag: LagTracker, policy: SnapshotPolicy, scrub_counts: ScrubCounts) -> None:
        """Take the figures from these four."""
        self._local = local
        self._lag = lag
        self._policy = policy
        self._scrub_counts = scrub_counts
        self._damaged_told = self._full_told = 0

    def measure(self, version: int) -> dict[str, int]:
        """Return metrics of the table files, of damage, and of the cost of restoring ``version`` if that is known.

        Of several commits at one time, one tells what has happened since the last.
        """
        copies, versions = self._local.copies, self._local.versions
        with self._local.lock:
            damaged, self._damaged_told = copies.damaged - self._damaged_told, copies.damaged
            full, self._full_told = copies.full_disk.count - self._full_told, copies.full_disk.count
        metrics = {
            "tables": versions.tables.files,
            "table_bytes": versions.tables.size_bytes,
            "damaged_copies": damaged,
            "full_disks": full,
            **self._scrub_counts.take(),
        }
        lag = self._lag.up_to(version)
        if lag is not None:
            metrics["snapshot_version"] = lag.snapshot_version
            metrics["deltas_since_snapshot"] = lag.deltas
            metrics["delta_bytes_since_snapshot"] = lag.delta_bytes
            metrics["restore_forecast_ms"] = round(self._policy.restore_s(lag, versions.tables.size_bytes) * 1000)
        return metrics


def to_ms(seconds: float) -> float:
    """Return ``seconds`` in milliseconds, to a microsecond."""
    return round(seconds * 1000, 3)


def ms_since(started: float) -> float:
    """Return the milliseconds since ``time.monotonic()`` was ``started``."""
    return to_ms(time.monotonic() - started)
