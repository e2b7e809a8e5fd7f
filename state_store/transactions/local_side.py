"""The local side of a store: its copies on this machine's disk, and the lock under which they change.

The lock is held for pointer swaps, hard links and ingests, which take milliseconds, and never for a remote request.
"""

from __future__ import annotations

import threading
from pathlib import Path

from pyspark_ckpt.state_store.errors import LifecycleError
from pyspark_ckpt.state_store.local.copies import LocalCopies, LocalCopy
from pyspark_ckpt.state_store.local.damage import is_of_the_copy
from pyspark_ckpt.state_store.local.damage_notes import read_notes
from pyspark_ckpt.state_store.restore.store_restorer import StoreRestorer
from pyspark_ckpt.state_store.restore.versions import LocalVersions
from pyspark_ckpt.state_store.snapshots.lag import LagTracker
from pyspark_ckpt.state_store.transactions.context import StoreContext
from pyspark_ckpt.state_store.transactions.transaction import Transaction


class LocalSide:
    """Local copies of one store. Safe to use from many threads. A caller that uses ``copies`` must hold ``lock``."""

    def __init__(self, context: StoreContext, lag: LagTracker) -> None:
        """Keep copies in the folder of ``context``. A restore tells ``lag`` what it has listed."""
        shared = context.shared
        self.lock = threading.RLock()
        self.closed = False
        self.copies = LocalCopies(
            context.folder,
            context.tuning,
            context.options.local_checkpoints,
            shared.sweeper,
            context.log,
            shared.make_id,
        )
        restorer = StoreRestorer(
            context.place,
            context.tuning,
            shared.pool,
            shared.failpoints,
            shared.forecast,
            context.log,
            str(context.identity),
        )
        self.versions = LocalVersions(self.copies, restorer, lag, self.lock, self.require_usable, context.log)
        self.ingest_ms = 0.0
        """How long the live database took to follow the last commit."""
        self._identity = context.identity
        self._log = context.log

    def require_usable(self) -> None:
        """Raise LifecycleError if the store is closed."""
        if self.closed:
            raise LifecycleError(f"{self._identity} is closed.", hint="Open the store again.", retryable=True)

    def is_live(self, transaction: Transaction) -> bool:
        """Return whether the base of ``transaction`` is the live copy, which commits move forward."""
        return transaction.copy is self.copies.live

    def locate(self, transaction: Transaction) -> tuple[Path, bool]:
        """Return the database that ``transaction`` reads, and whether it is the live one, which commits move on."""
        with self.lock:
            return transaction.copy.db, self.is_live(transaction)

    def discard_damaged(self, copy: LocalCopy, problem: object) -> None:
        """Forget a damaged local copy and all that share files with it. The next begin restores the version.

        Leased copies stay on disk until the lease ends. Forgetting a copy twice is no error.
        """
        with self.lock:
            self.versions.check_what_is_restored()
            if not self.closed:
                self.copies.discard_damaged(copy, problem)

    def report_damage(self, transaction: Transaction, failure: str) -> bool:
        """Handle the report that a reader could not read the local copy of a transaction.

        Discard the copy and return True, unless the ``failure`` is one of the machine, such as a full disk.
        """
        if not is_of_the_copy(failure):
            self._log.warning(
                "the local copy of %s is kept; its reader has failed for another reason: %s", transaction.base, failure
            )
            return False
        self.discard_damaged(transaction.copy, failure)
        return True

    def release(self, copy: LocalCopy) -> None:
        """Release a copy that was leased for a snapshot."""
        with self.lock:
            self.copies.release(copy)
            self.copies.prune()

    def let_go(self, transaction: Transaction) -> None:
        """Release the copy of a transaction that has ended, and delete its local files."""
        for failure in read_notes(transaction.staging):
            self.report_damage(transaction, failure)
        with self.lock:
            self.copies.release(transaction.copy)
            if transaction.left is not None:
                self.copies.release(transaction.left)
            if not self.closed:
                self.copies.prune()
        transaction.clear()
