"""Apply durable commits to the live database, after they were answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait

from pyspark_ckpt.state_store.database import TableCount
from pyspark_ckpt.state_store.format.meta import StoreMeta, is_keyed
from pyspark_ckpt.state_store.local.copies import LocalCopy
from pyspark_ckpt.state_store.packs.slots import split_id
from pyspark_ckpt.state_store.transactions.context import StoreContext
from pyspark_ckpt.state_store.transactions.local_side import LocalSide
from pyspark_ckpt.state_store.transactions.metrics import ms_since
from pyspark_ckpt.state_store.transactions.staged_tables import StagedTable
from pyspark_ckpt.state_store.transactions.transaction import Transaction


class Follower:
    """Moves the live database of one store from commit to commit."""

    def __init__(
        self, context: StoreContext, local: LocalSide, keep_base: Callable[[LocalCopy, LocalCopy], None]
    ) -> None:
        """Move the live copy of ``local``.

        Before it moves, ``keep_base`` is called with it and a frozen copy of its version. The store's lock is held.
        """
        self._keep_base = keep_base
        self._context = context
        self._shared = context.shared
        self._local = local
        self._moves: list[Future[None]] = []

    def begin(self, transaction: Transaction, meta: StoreMeta, staged: Sequence[StagedTable]) -> None:
        """Follow a commit in the background. The caller holds the store's lock."""
        self._moves = [move for move in self._moves if not move.done()]
        try:
            self._moves.append(self._shared.mover.submit(self._ingest_commit, transaction, meta, staged))
        except RuntimeError:  # this process is ending: the next one restores the version
            self._local.let_go(transaction)

    def await_moves(self) -> None:
        """Wait until the live database has followed all commits, which takes milliseconds."""
        wait(self._moves)

    def _ingest_commit(self, transaction: Transaction, meta: StoreMeta, staged: Sequence[StagedTable]) -> None:
        """Apply a valid commit to the live database if it is still at the base. The base stays as a frozen copy.

        The commit is durable and was answered: a failure costs a restore, but no data.
        """
        failpoints, started = self._shared.failpoints, time.monotonic()
        local, log = self._local, self._context.log
        stands = transaction.result is not None and split_id(transaction.result.id)[0] == transaction.new_id
        try:
            with local.lock:
                live = local.copies.live
                if stands and not local.closed and live is not None and live.marker == transaction.base:
                    self._keep_base(live, local.copies.checkpoint_live())
                    failpoints.hit("commit.before_ingest")
                    for table in staged:
                        table.require_unchanged()
                    local.copies.advance(meta, [table.path for table in staged])
                    failpoints.hit("commit.after_ingest")
                    local.ingest_ms = ms_since(started)
                    self._shared.forecast.note_ingest(1, local.ingest_ms / 1000)
                    tables = local.copies.live_tables()
                    local.versions.tables = TableCount.of(tables)
                    if any(map(is_keyed, meta.states)):
                        self._shared.columns.schedule(live, tables, log, local.discard_damaged)
        except Exception as problem:
            with local.lock:
                local.copies.full_disk.note(problem)
            log.exception("%s is durable, but must be restored: the local database failed", transaction.target)
        try:
            local.let_go(transaction)
        except Exception:
            log.exception("local files of %s could not be tidied up", transaction.target)
