"""A store: the state of one operator in one partition, under one name.

Any number of transactions run at once, on one base or on several. No transaction waits for another. The store's lock is
held for pointer swaps, hard links and ingests, which take milliseconds, and never for a remote request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from pyspark_ckpt.state_store.attempts.decisions import Decisions
from pyspark_ckpt.state_store.database import TableCount, Tuning
from pyspark_ckpt.state_store.display import write_rescale
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError, StorageError
from pyspark_ckpt.state_store.format.keys import EMPTY, Marker
from pyspark_ckpt.state_store.format.meta import Descriptor, StoreMeta
from pyspark_ckpt.state_store.identity import Caller
from pyspark_ckpt.state_store.local.copies import LocalCopy
from pyspark_ckpt.state_store.local.files import make_folder
from pyspark_ckpt.state_store.packs.slots import split_id
from pyspark_ckpt.state_store.restore.versions import Leased
from pyspark_ckpt.state_store.snapshots.lag import LagTracker
from pyspark_ckpt.state_store.snapshots.policy import SnapshotPolicy
from pyspark_ckpt.state_store.transactions.commit_writer import CommitWriter
from pyspark_ckpt.state_store.transactions.context import StoreContext
from pyspark_ckpt.state_store.transactions.follower import Follower
from pyspark_ckpt.state_store.transactions.local_side import LocalSide
from pyspark_ckpt.state_store.transactions.metrics import ScrubCounts, UpkeepMetrics, ms_since
from pyspark_ckpt.state_store.transactions.operator_states import States
from pyspark_ckpt.state_store.transactions.staged_tables import Seals
from pyspark_ckpt.state_store.transactions.ticket import WorkerTask
from pyspark_ckpt.state_store.transactions.ticket_writer import TicketWriter
from pyspark_ckpt.state_store.transactions.transaction import Committed, Status, Transaction


class Store:
    """Serves all versions of one store and makes new ones."""

    def __init__(self, context: StoreContext) -> None:
        """Keep durable objects in the place of ``context``, and local copies in its folder."""
        self._context = context
        self.identity = context.identity
        self.place = context.place
        self.root = context.root
        self.options = context.options
        self.log = context.log
        self.checkpoint = context.checkpoint
        self._shared = context.shared
        self._tasks = context.packs.tasks
        self._transactions: dict[int, Transaction] = {}
        self.lag = LagTracker(context.shared.clock)
        self.scrub_counts = ScrubCounts()
        self.policy = SnapshotPolicy(context.options, context.shared.forecast)
        self.local = LocalSide(context, self.lag)
        self._lock = self.local.lock
        self._copies = self.local.copies
        self._versions = self.local.versions
        self.decisions = Decisions(context.identity, context.place, context.checkpoint, context.epochs, context.log)
        self.follower = Follower(context, self.local, self._keep_base)
        self._tickets = TicketWriter(context, self.local)
        upkeep = UpkeepMetrics(self.local, self.lag, self.policy, self.scrub_counts)
        self._writer = CommitWriter(context, self.local, self.decisions, self.lag, upkeep)
        self.newest: Marker | None = None
        """The base of the latest transaction of a query. Spark has certainly committed it."""

    @property
    def closed(self) -> bool:
        """Return whether the store has been closed."""
        return self.local.closed

    @property
    def tuning(self) -> Tuning:
        """Return the RocksDB settings of this store."""
        return self._context.tuning

    @property
    def tables(self) -> TableCount:
        """Return the table files of the live database after the last commit or restore."""
        return self._versions.tables

    @property
    def open_transactions(self) -> int:
        """Return how many transactions have not ended."""
        return len(self._transactions)

    def note_run(self, caller: Caller) -> None:
        """Note the epoch that the driver of a run has taken. Commits of the run are refused once it is over."""
        self._context.epochs.note(caller.run_id, caller.epoch)

    def is_over(self, caller: Caller) -> bool:
        """Return whether the run is over, as when a later one has begun. Raises FormatError, StorageError."""
        return self._context.epochs.has_ended(caller.run_id)

    def adopt(self) -> None:
        """Adopt the local copies that an earlier state server left."""
        with self._lock:
            self._copies.adopt()

    def begin(
        self, caller: Caller, version: int, commit_id: str | None, worker: WorkerTask | None, num_partitions: int | None
    ) -> Transaction:
        """Begin a transaction on a committed version. Until it ends, its reads see exactly that version.

        If there is a local copy of the version, this makes no remote request, except for the first ``worker`` of a run:
        see ``OperatorStates``. Raises NotFoundError (never committed with this id, or retired), InvalidInputError
        (other number of partitions), ConflictError, FormatError, StorageError.
        """
        self._shared.failpoints.hit("begin.before")
        started = time.monotonic()
        self.follower.await_moves()
        base = self.find_commit(caller, version, commit_id)
        leased = self._versions.lease(base)
        try:
            self._check_partitions(leased.meta, num_partitions)
            states = () if worker is None else self._tickets.read_states(caller, leased.meta)
        except BaseException:
            self._release(leased.copy)
            raise
        transaction = self._open(caller, base, leased, worker, states)
        self.lag.note_begin(base)
        with self._lock:
            if caller.run_id:  # a reader outside a query does not tell how far the query is
                self.newest = base
            self.decisions.decide(caller, base)
        self._shared.failpoints.hit("begin.after_ticket")
        transaction.metrics = {"load_ms": ms_since(started), "restored": 0, "replayed_deltas": 0, **leased.metrics}
        return transaction

    def find_commit(self, caller: Caller, version: int, commit_id: str | None) -> Marker:
        """Return the commit of a version that stands for this caller, see ``Decisions``."""
        plain, slot = (None, None) if commit_id is None else split_id(commit_id)
        commit = self.decisions.find_commit(caller, version, plain)
        if slot is not None:
            self.place.note(version, str(commit_id), at_s=self._shared.clock())
        return commit

    def replay(
        self, caller: Caller, version: int, commit_id: str | None, start: int, start_id: str | None
    ) -> Transaction:
        """Begin a transaction on a version that is built from the snapshot of version ``start`` and deltas only.

        It uses no existing local copy. The new copy is deleted at the end of the transaction. Raises as
        ``StoreRestorer.replay``; InvalidInputError if ``start`` is not 1 to ``version``.
        """
        started = time.monotonic()
        if not 1 <= start <= version:
            raise InvalidInputError(f"{self.identity}: version {version} cannot be replayed from version {start}.")
        base = self.find_commit(caller, version, commit_id)
        leased = self._versions.replay(base, start, None if start_id is None else split_id(start_id)[0])
        transaction = self._open(caller, base, leased, None, ())
        transaction.metrics = {"load_ms": ms_since(started), **leased.metrics}
        return transaction

    def create_state(self, transaction: Transaction, name: str, descriptor: Descriptor) -> int:
        """Return the number of state ``name``. Create the state if needed: it exists from this commit on.

        Raises LifecycleError, InvalidInputError (the layout of its rows would change).
        """
        with self._lock:
            transaction.require_open()
            try:
                transaction.meta, number = transaction.meta.with_state(name, descriptor)
            except InvalidInputError as problem:
                raise InvalidInputError(f"{self.identity}: {problem.message}", hint=problem.hint) from problem
            return number

    def drop_state(self, transaction: Transaction, name: str) -> None:
        """Forget state ``name``. The caller deletes its rows in the same transaction. Raises LifecycleError."""
        with self._lock:
            transaction.require_open()
            transaction.meta = transaction.meta.without_state(name)

    def commit(
        self,
        transaction: Transaction,
        files: Sequence[str],
        row_changes: Mapping[int, int],
        num_partitions: int | None,
        seals: Seals = MappingProxyType({}),
    ) -> Committed:
        """Make the next version from the staged table files, applied in order.

        Staged files are checked against their ``seals`` and their own checksums before anything is visible. On return,
        the version survives the loss of this machine; the local database follows in the background. A repeated call
        gets the same answer. In checkpoint format 1 the answer may name another commit of this run that was first.
        After an error, the transaction is ABORTED and the base is unchanged. Raises LifecycleError (also for a
        transaction of no run), InvalidInputError, StorageError.
        """
        with self._lock:
            if transaction.status is Status.COMMITTED and transaction.result is not None:
                return transaction.result
            self.local.require_usable()
            self._require_run(transaction)
            transaction.move(Status.PREPARED)
        try:
            meta, staged, result = self._writer.make_durable(transaction, files, row_changes, num_partitions, seals)
        except BaseException:
            self._end(transaction, Status.ABORTED)
            raise
        with self._lock:
            transaction.result = result
            transaction.move(Status.COMMITTED)
            self._unregister(transaction)
            transaction.drop_ticket()  # here, because the next transaction of the same task may use the same path
            self.follower.begin(transaction, meta, staged)
        self._shared.failpoints.hit("commit.before_answer")
        return result

    def abort(self, transaction: Transaction) -> None:
        """Abort an open transaction. Do nothing if it has ended or is being committed."""
        with self._lock:
            if transaction.status is Status.OPEN:
                self._end(transaction, Status.ABORTED)

    def find_last_commit(self) -> Marker | None:
        """Return the commit of the last batch, if the live copy has it and Spark has not asked for it yet."""
        with self._lock:
            live, newest = self._copies.live, self.newest
            follows = live is not None and newest is not None and live.marker.version == newest.version + 1
            return live.marker if live is not None and follows else None

    def lease_for_snapshot(self, due: Callable[[int], bool], commit: Marker | None = None) -> LocalCopy | None:
        """Lease a frozen copy of a commit: by default the newest one that Spark has asked for.

        None if the commit is not here or not ``due``.
        """
        with self._lock:
            wanted = commit or self.newest
            newest = self._copies.find(wanted) if wanted not in {None, EMPTY} else None
            if self.local.closed or newest is None or not due(newest.marker.version):
                return None
            frozen = self._copies.checkpoint_live() if newest is self._copies.live else newest
            self._copies.lease(frozen)
            return frozen

    def close(self) -> None:
        """Abort open transactions, close the database, delete the local files. May be called twice."""
        with self._lock:
            if self.local.closed:
                return
            for transaction in list(self._transactions.values()):
                self.abort(transaction)
            self.local.closed = True
            self._copies.close(remove=True)

    def _check_partitions(self, meta: StoreMeta, num_partitions: int | None) -> None:
        if num_partitions is not None and meta.num_partitions not in (None, num_partitions):
            rescale = write_rescale(self.checkpoint.url, num_partitions, **self._context.place_options)
            raise InvalidInputError(
                f"{self.identity}: the state was written with {meta.num_partitions} partitions, "
                f"but the query now runs with {num_partitions}.",
                hint=f"Set spark.sql.shuffle.partitions to {meta.num_partitions} for this checkpoint, or make a "
                f"checkpoint with {num_partitions} partitions from it: {rescale}.",
            )

    def _require_run(self, transaction: Transaction) -> None:
        if not transaction.run_id:
            self._end(transaction, Status.ABORTED)
            raise LifecycleError(
                f"{self.identity}: {transaction.target} is not committed, because its transaction belongs to no run of "
                "a query that pyspark-ckpt knows.",
                hint="Only streaming queries write state. If a query has failed with this error, its session does not "
                "have the extensions of the jar: make the session with the jar, or call pyspark_ckpt.attach(session) "
                "before the query starts.",
            )

    def _open(
        self, caller: Caller, base: Marker, leased: Leased, worker: WorkerTask | None, states: Sequence[States]
    ) -> Transaction:
        """Open a transaction. After an error the lease is released."""
        number = next(self._shared.transaction_numbers)
        staging = self._shared.local_dir / "staging" / f"{number}-{self._shared.make_id()[:8]}"
        transaction = Transaction(
            number, base, self._shared.make_id(), leased.copy, leased.meta, staging, caller.format, caller.run_id
        )
        transaction.located = self.place.find_id(base)
        try:
            make_folder(staging, self._shared.local_dir)
            while not self._register(transaction, worker, states):
                moved, transaction.copy = transaction.copy, self._versions.lease(base).copy
                self._release(moved)
        except BaseException as problem:
            self._release(transaction.copy)
            transaction.clear()
            if not isinstance(problem, OSError):
                raise
            raise StorageError(f"{self.identity}: could not make the staging folder {staging}: {problem}.") from problem
        return transaction

    def _register(self, transaction: Transaction, worker: WorkerTask | None, states: Sequence[States]) -> bool:
        """Make a transaction one of the open ones, unless its copy has moved on since it was leased.

        Raises LifecycleError if the store was closed meanwhile.
        """
        with self._lock:
            self.local.require_usable()
            is_there = transaction.copy.marker == transaction.base
            if is_there:
                if worker is not None:
                    self._tickets.write(transaction, worker, states)
                self._transactions[transaction.number] = transaction
                self._tasks.begin(transaction.target.version, self.identity.partition)
            return is_there

    def _unregister(self, transaction: Transaction) -> None:
        """Make a transaction no longer one of the open ones. The caller holds the store's lock."""
        if self._transactions.pop(transaction.number, None) is not None:
            self._tasks.end(transaction.target.version, self.identity.partition)

    def _keep_base(self, live: LocalCopy, frozen: LocalCopy) -> None:
        """Give the ``frozen`` copy of their base to the transactions on ``live``, which is leaving it.

        A worker may have begun to open the live copy. It notices that the copy has moved on, and reads its ticket
        again.
        """
        for transaction in self._transactions.values():
            if transaction.copy is live:
                self._tickets.rewrite(transaction, frozen)
                self._copies.lease(frozen)
                transaction.copy, transaction.left = frozen, live

    def _release(self, copy: LocalCopy) -> None:
        with self._lock:
            self._copies.release(copy)

    def _end(self, transaction: Transaction, status: Status) -> None:
        with self._lock:
            transaction.move(status)
            self._unregister(transaction)
        self.local.let_go(transaction)
