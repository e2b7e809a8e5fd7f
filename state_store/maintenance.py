"""Background work of one store: when a snapshot is due, and cleaning up. Spark's maintenance thread calls it.

Nothing here is waited for by a transaction. One piece of work at a time per store; a call while another one
runs returns at once.
"""

from __future__ import annotations

import threading
import time

from pyspark_ckpt.state_store.context import Shared
from pyspark_ckpt.state_store.errors import CkptError
from pyspark_ckpt.state_store.lineage import Lineage
from pyspark_ckpt.state_store.retention import Retention
from pyspark_ckpt.state_store.snapshot import Published, SnapshotWriter
from pyspark_ckpt.state_store.store import Store


class Maintenance:
    """Snapshots and retention of one store."""

    def __init__(self, store: Store, shared: Shared) -> None:
        """Serve ``store``."""
        self._store = store
        self._busy = threading.Lock()
        self._last_snapshot: int | None = None
        failpoints = shared.failpoints
        self._writer = SnapshotWriter(store.place, store.tuning, failpoints, store.log)
        self._retention = Retention(
            store.place, store.options.retention_grace_period_s, shared.pool, failpoints, store.log, shared.clock
        )

    def snapshot(self, *, force: bool = False) -> tuple[Published | None, dict[str, int]]:
        """Make a snapshot of the newest version Spark has asked for, if enough versions passed since the last one.

        ``force`` makes one at any version. Never blocks a transaction. Raises StorageError, InternalError.
        """
        started = time.monotonic()
        if not self._busy.acquire(blocking=False):
            return None, {}
        try:
            published = self._snapshot(force=force)
        finally:
            self._busy.release()
        metrics = {"snapshot_ms": round((time.monotonic() - started) * 1000)}
        if published is not None:
            metrics["uploaded_files"] = published.uploaded_files
            metrics["uploaded_bytes"] = published.uploaded_bytes
            metrics["reused_files"] = published.reused_files
            self._store.log.info("snapshot of %s published: %s", published.marker, metrics)
        return published, metrics

    def cleanup(self, min_versions: int) -> int:
        """Delete what nobody can ask for any more; returns the number of objects. Raises StorageError."""
        if self._store.newest is None or self._store.closed or not self._busy.acquire(blocking=False):
            return 0
        try:
            return self._retention.clean(self._store.newest, min_versions)
        finally:
            self._busy.release()

    def _snapshot(self, *, force: bool) -> Published | None:
        copy = self._store.lease_for_snapshot(lambda version: force or self._is_due(version))
        if copy is None:
            return None
        try:
            lineage = Lineage.read(self._store.place)
            if self._last_snapshot is None and not force:
                ancestors = lineage.ancestors(copy.marker)
                self._last_snapshot = max((m.version for m in lineage.snapshots if m in ancestors), default=0)
                if not self._is_due(copy.marker.version):
                    return None
            published = self._writer.publish(copy, lineage, lambda: self._store.closed)
            self._last_snapshot = copy.marker.version
        except (CkptError, OSError):
            if not self._store.closed:
                raise
            self._store.log.info("the store was closed while a snapshot was made; it is not published")
            return None
        finally:
            self._store.release(copy)
            self._retention.look_again()
        return published

    def _is_due(self, version: int) -> bool:
        """Whether enough versions have passed; with the last snapshot unknown, whether that may be so."""
        every = self._store.options.snapshot_every_versions
        if self._last_snapshot is not None and version < self._last_snapshot:
            self._last_snapshot = None  # the query went back: look again
        return version - (self._last_snapshot or 0) >= every
