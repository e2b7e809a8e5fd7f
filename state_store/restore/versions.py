"""Versions of one store on this machine. A missing version is restored once, for all callers that ask for it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from pyspark_ckpt.state_store.database import TableCount
from pyspark_ckpt.state_store.errors import FormatError, StorageError
from pyspark_ckpt.state_store.format.keys import Marker
from pyspark_ckpt.state_store.format.meta import StoreMeta
from pyspark_ckpt.state_store.local.copies import LocalCopies, LocalCopy
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.restore.store_restorer import RestoredStore, StoreRestorer
from pyspark_ckpt.state_store.snapshots.lag import LagTracker


class Leased(NamedTuple):
    """A leased copy, the metadata of its version, and metrics of the restore.

    The copy may be the live one and move to a later version. ``meta`` stays that of the requested version.
    """

    copy: LocalCopy
    meta: StoreMeta
    metrics: dict[str, int]


class LocalVersions:
    """Leases and restores versions of one store. Safe to call from many threads. No lock is held during a restore."""

    def __init__(
        self,
        copies: LocalCopies,
        restorer: StoreRestorer,
        lag: LagTracker,
        lock: threading.RLock,
        require_usable: Callable[[], None],
        log: StoreLog,
    ) -> None:
        """Keep versions in ``copies``, which ``lock`` protects. ``require_usable`` raises if the store is closed."""
        self._copies = copies
        self._restorer = restorer
        self._lag = lag
        self._lock = lock
        self._require_usable = require_usable
        self._log = log
        self._restoring: dict[Marker, Future[None]] = {}
        self.tables = TableCount(0, 0)
        """Table files of the live database after the last commit or restore."""

    def lease(self, base: Marker) -> Leased:
        """Lease a local copy of ``base``. Restore the version if there is no copy.

        Raises as ``StoreRestorer.restore``; LifecycleError.
        """
        while True:
            with self._lock:
                self._require_usable()
                copy = self._copies.take(base)
                if copy is not None:
                    return Leased(copy, copy.meta, {})
                running = self._restoring.get(base)
                if running is None:
                    mine = self._restoring[base] = Future[None]()
            if running is not None:
                running.result()
                continue
            try:
                leased = self._restore(base)
            except BaseException as problem:
                mine.set_exception(problem)
                raise
            else:
                mine.set_result(None)
                return leased
            finally:
                with self._lock:
                    del self._restoring[base]

    def check_what_is_restored(self) -> None:
        """A reader has found damage: verify table files more strictly from now on (``StoreRestorer.checks_tables``)."""
        self._restorer.checks_tables = True

    def _restore(self, base: Marker) -> Leased:
        with self._lock:
            folder = self._copies.new_folder()
            local = {copy.marker for copy in self._copies}
            if self._copies.damaged:  # perhaps the damage came from the remote place
                self.check_what_is_restored()
        try:
            restored = self._restorer.restore(base, folder, local, self._link)
            copy = self._take_in(folder, restored)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._lag.observe(restored.lineage, base)
        self._log.info("%s restored from %s: %s", base, restored.origin, restored.metrics)
        return Leased(copy, restored.meta, restored.metrics)

    def _take_in(self, folder: Path, restored: RestoredStore) -> LocalCopy:
        """Make a leased copy of a restored version. After an error, its database is closed."""
        with self._lock:
            try:
                self._require_usable()
                self.tables = restored.database.table_count()
            except BaseException:
                restored.database.close()
                raise
            copy = self._copies.add(folder, restored.meta, restored.database)
            self._copies.lease(copy)
            return copy

    def replay(self, base: Marker, start: int, start_id: str | None) -> Leased:
        """Lease a copy that is built for this caller only, see ``StoreRestorer.replay``."""
        with self._lock:
            self._require_usable()
            folder = self._copies.new_folder()
        try:
            restored = self._restorer.replay(base, start, start_id, folder)
            restored.database.close()
            copy = LocalCopy(folder, restored.meta)
            with self._lock:
                self._require_usable()
                self._copies.lease(copy)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return Leased(copy, restored.meta, restored.metrics)

    def _link(self, base: Marker, folder: Path) -> StoreMeta | None:
        with self._lock:
            copy = self._copies.find(base)
            if copy is None:
                return None
            try:
                self._copies.link(copy, folder)
            except (StorageError, FormatError, OSError) as problem:
                self._copies.full_disk.note(problem)
                self._copies.discard_unusable(copy, problem)
                raise
            return copy.meta
