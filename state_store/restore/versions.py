"""Versions of one store on this machine: what is here is leased, what is not is restored, once for all who ask."""

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
from pyspark_ckpt.state_store.restore.restorer import Restored, Restorer
from pyspark_ckpt.state_store.snapshots.lag import LagTracker


class Leased(NamedTuple):
    """A copy that is leased, what its version holds, and what it took to make it.

    The copy that commits move forward may be at a later version by the time that it is looked at; ``meta`` is not.
    """

    copy: LocalCopy
    meta: StoreMeta
    metrics: dict[str, int]


class LocalVersions:
    """Versions of one store on this machine. Safe to call from many threads; no lock is held while one is restored."""

    def __init__(
        self,
        copies: LocalCopies,
        restorer: Restorer,
        lag: LagTracker,
        lock: threading.RLock,
        require_usable: Callable[[], None],
        log: StoreLog,
    ) -> None:
        """Keep them in ``copies``, which ``lock`` protects; ``require_usable`` raises when the store is closed."""
        self._copies = copies
        self._restorer = restorer
        self._lag = lag
        self._lock = lock
        self._require_usable = require_usable
        self._log = log
        self._restoring: dict[Marker, Future[None]] = {}
        self.tables = TableCount(0, 0)
        """Table files of the live database behind the last commit or restore."""

    def lease(self, base: Marker) -> Leased:
        """A leased local copy of ``base``, restored if there is none, and what that took.

        Raises as ``Restorer.restore``; LifecycleError.
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
        """From now on find also table files that were damaged before they were stored: a reader has found damage."""
        self._restorer.checks_tables = True

    def _restore(self, base: Marker) -> Leased:
        with self._lock:
            folder = self._copies.new_folder()
            local = {copy.marker for copy in self._copies}
            if self._copies.damaged:  # perhaps it came damaged from the remote place
                self.check_what_is_restored()
        try:
            restored = self._restorer.restore(base, folder, local, self._link)
            copy = self._take_in(folder, restored)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._lag.observe(restored.lineage, base)
        self._log.info("%s restored: %s", base, restored.metrics)
        return Leased(copy, restored.meta, restored.metrics)

    def _take_in(self, folder: Path, restored: Restored) -> LocalCopy:
        """A leased copy of what was restored; after an error its database is closed."""
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
        """A leased copy that was built for the caller alone, see ``Restorer.replay``, and what that took."""
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
                self._copies.discard_unusable(copy, problem)
                raise
            return copy.meta
