"""Background work of one store: snapshots that are due, retention and scrubbing. Spark's maintenance thread calls it.

No transaction waits for this work. A store does one piece of it at a time; a call during another one returns at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark_ckpt.state_store.attempts.commit_log import is_committed
from pyspark_ckpt.state_store.attempts.winners import Evidence, resolve
from pyspark_ckpt.state_store.checkpoints.ownership import refuse_links
from pyspark_ckpt.state_store.errors import (
    CkptError,
    ConflictError,
    DamagedCopyError,
    FormatError,
    InvalidInputError,
    NotFoundError,
)
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.remote import store_folder
from pyspark_ckpt.state_store.local.copies import LocalCopy
from pyspark_ckpt.state_store.packs.lineages import read_lineage
from pyspark_ckpt.state_store.retention.confirmation import Confirmations
from pyspark_ckpt.state_store.retention.packs import PackRetention
from pyspark_ckpt.state_store.retention.pins import Pins
from pyspark_ckpt.state_store.retention.retention import CONFIRMED_BYTES, Retention
from pyspark_ckpt.state_store.retention.scrub import Scrub
from pyspark_ckpt.state_store.snapshots.writer import Published, SnapshotWriter
from pyspark_ckpt.state_store.transactions.context import SharedResources
from pyspark_ckpt.state_store.transactions.store import Store


class Maintenance:
    """Snapshots and retention of one store."""

    def __init__(self, store: Store, resources: SharedResources) -> None:
        """Maintain ``store``."""
        self._store = store
        self._busy = threading.Lock()
        self._forecast = resources.forecast
        self._clock = resources.clock
        self._warned = False
        self._has_warned_of_link = False
        failpoints = resources.failpoints
        self._writer = SnapshotWriter(
            store.place,
            store.identity.partition,
            store.tuning,
            failpoints,
            store.log,
            full=store.options.full_snapshots,
            make_id=resources.make_id,
        )
        confirmations = Confirmations(store.place, store.log)
        self._writer.damaged = confirmations.damaged.keys()
        self._retention = Retention(
            store.place,
            Pins(store.checkpoint, resources.times),
            store.options.retention_grace_period_s,
            resources.pool,
            failpoints,
            store.log,
            resources.clock,
            confirmations,
            resources.times,
            resources.make_id,
        )
        scratch = resources.local_dir / "staging" / f"scrub-{resources.make_id()[:16]}"
        self._scrub = Scrub(
            store.place,
            confirmations,
            store.options.scrub_interval_s,
            scratch,
            store.scrub_counts,
            store.log,
            resources.times.make_clock(store.place),
        )
        # One of the stores does it for the query. Spark numbers operators with state from 0 on.
        is_first = (store.identity.operator, store.identity.partition) == (0, 0)
        self._packs = PackRetention(store.root, resources.pool, store.log) if is_first else None
        self._found_damage = False
        self._has_recalled = False

    def snapshot(self, *, force: bool = False) -> tuple[Published | None, dict[str, int]]:
        """Make a snapshot of the newest version that Spark has committed, if the snapshot policy says that one is due.

        ``force`` makes one at any version. Never blocks a transaction. Raises DamagedCopyError (the local copy was
        damaged: it is discarded and no snapshot is made), StorageError, InternalError.
        """
        started = time.monotonic()
        if not self._busy.acquire(blocking=False):
            return None, {}
        try:
            self._recall()
            published, reason = self._snapshot(force=force or self._found_damage)
            self._found_damage &= published is None
        finally:
            self._busy.release()
        metrics = {"snapshot_ms": round((time.monotonic() - started) * 1000)}
        if published is not None:
            metrics["uploaded_files"] = published.uploaded_files
            metrics["uploaded_bytes"] = published.uploaded_bytes
            metrics["reused_files"] = published.reused_files
            self._store.log.info("published the snapshot of %s: %s; %s", published.marker, reason, metrics)
        return published, metrics

    def _recall(self) -> None:
        """Re-read what an earlier process found damaged. It may have ended before it made a snapshot."""
        if self._has_recalled or self._store.newest is None:
            return
        try:
            self._found_damage |= self._scrub.recall()
            self._has_recalled = True
        except CkptError as problem:
            self._store.log.warning("damaged objects could not be re-read, and will be tried again: %s", problem)

    def cleanup(self, min_versions: int) -> int:
        """Delete objects that no query can ask for any more; return how many. Raises StorageError.

        Then scrub the remaining objects that are due: re-read them and repair damage. Nothing is deleted where a link
        leads from the query's folder elsewhere.
        """
        if self._store.newest is None or self._store.closed or not self._busy.acquire(blocking=False):
            return 0
        try:
            if not self._is_own():
                return 0
            count = self._retention.clean(self._store.newest, min_versions, CONFIRMED_BYTES)
            if self._packs is not None:
                count += self._packs.clean()
            scrubbed = self._scrub.run(self._local_tables)
            self._found_damage |= scrubbed.found_damage or self._retention.has_lost_newest
            if scrubbed.healed:
                self._retention.look_again()
            return count
        finally:
            self._busy.release()

    def _is_own(self) -> bool:
        """Return whether the folder of the store is in the query's, and not a link; warn once if not.

        The owner of a query's folder below ``remote`` was checked when the store was opened.
        """
        folder = store_folder(self._store.identity)
        try:
            refuse_links(self._store.place.url.removesuffix(f"/{folder}"), folder)
        except InvalidInputError as problem:
            if not self._has_warned_of_link:
                self._store.log.warning("no old versions are deleted: %s %s", problem.message, problem.hint)
            self._has_warned_of_link = True
            return False
        return True

    def _local_tables(self) -> Iterator[Path]:
        """Yield the table files of a local copy, which stays leased until all of them have been read."""
        copy = self._store.lease_for_snapshot(lambda _version: True)
        if copy is not None:
            try:
                yield from sorted(copy.db.glob("*.sst"))
            finally:
                self._store.local.release(copy)

    def _lease(self, is_due: Callable[[int], bool]) -> LocalCopy | None:
        """Lease a frozen copy for a snapshot.

        Spark asks for the commit of the last batch only with the next batch. Until then, the commit log says whether it
        counts.
        """
        store, last = self._store, self._store.find_last_commit()
        if last is not None and is_due(last.version) and is_committed(store.checkpoint, last.version):
            try:
                stands = resolve(store.identity, last.version, Evidence(store.place, store.checkpoint)) == last
            except (ConflictError, FormatError, NotFoundError):  # the next batch reports it
                stands = False
            if stands:
                return store.lease_for_snapshot(is_due, last)
        return store.lease_for_snapshot(is_due)

    def _snapshot(self, *, force: bool) -> tuple[Published | None, str]:
        """Publish a snapshot if one is due. Return it, and why it was due."""
        copy = self._lease(lambda version: force or self._may_be_due(version))
        if copy is None:
            return None, ""
        try:
            lineage = read_lineage(self._store.place, copy.marker, passes_damage=True)
            reason = self._find_reason(copy.marker, lineage, force=force)
            if reason is None:
                return None, ""
            self._store.log.debug("making a snapshot of %s: %s", copy.marker, reason)
            published = self._publish(copy, lineage)
        except (CkptError, OSError) as problem:
            if not self._store.closed:
                if isinstance(problem, DamagedCopyError):
                    self._store.local.discard_damaged(copy, problem)
                raise
            self._store.log.info("the store was closed while a snapshot was made; the snapshot is not published")
            return None, ""
        finally:
            self._store.local.release(copy)
            self._retention.look_again()
        return published, reason

    def _publish(self, copy: LocalCopy, lineage: Lineage) -> Published | None:
        started = time.monotonic()
        published = self._writer.publish(copy, lineage, lambda: self._store.closed)
        if published is not None:
            self._forecast.note_transfer(published.uploaded_bytes, time.monotonic() - started)
        if published is not None or copy.marker in lineage.snapshots:
            self._store.lag.note_snapshot(copy.marker.version)
        table_bytes = self._store.tables.size_bytes
        if not self._warned and self._store.policy.misses_target(table_bytes):
            self._warned = True
            self._store.log.warning(
                "a restore of its %s bytes will take longer than restoreTarget, however often snapshots are made: "
                "use more partitions or set a longer target",
                table_bytes,
            )
        return published

    def _find_reason(self, commit: Marker, lineage: Lineage, *, force: bool) -> str | None:
        if lineage.is_lost(commit):
            self._store.log.warning(
                "%s has lost objects that a restore of %s needs: the local copy is stored as a new snapshot; find out "
                "what deletes objects there, such as a lifecycle rule or another program",
                self._store.place.url,
                commit,
            )
            return "a restore of the stored objects is not possible"
        if not lineage.can_restore(commit):
            self._store.log.info("no snapshot of %s is made: it is no longer in %s", commit, self._store.place.url)
            return None
        if self._store.lag.up_to(commit.version) is None:
            self._store.lag.observe(lineage, commit)
        return "it was requested" if force else self._reason(commit.version)

    def _may_be_due(self, version: int) -> bool:
        """Return whether a snapshot is due. If the last snapshot is not known, one may be due: return True."""
        return self._store.lag.up_to(version) is None or self._reason(version) is not None

    def _reason(self, version: int) -> str | None:
        lag = self._store.lag.up_to(version)
        return None if lag is None else self._store.policy.reason(lag, self._store.tables.size_bytes, self._clock())
