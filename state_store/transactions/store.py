"""A store: the state of one operator in one partition, under one name.

Any number of transactions run at once, on one base or on several. No transaction waits for another. The store's lock is
held for pointer swaps, hard links and ingests, which take milliseconds, and never for a remote request.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from pyspark_ckpt.state_store.attempts.decisions import Decisions
from pyspark_ckpt.state_store.attempts.winners import Epochs
from pyspark_ckpt.state_store.blobs import BlobPlace, Traffic
from pyspark_ckpt.state_store.database import TableCount, Tuning, write_table_file
from pyspark_ckpt.state_store.errors import InternalError, InvalidInputError, LifecycleError, StorageError
from pyspark_ckpt.state_store.format.delta import write_delta
from pyspark_ckpt.state_store.format.keys import EMPTY, MARKER_KEY, Marker
from pyspark_ckpt.state_store.format.meta import Descriptor, StoreMeta, is_keyed
from pyspark_ckpt.state_store.format.names import CHECKPOINT_FOLDER, NON_RESTORED_STATE_NAME, DeltaName, new_commit_id
from pyspark_ckpt.state_store.format.remote import point_to
from pyspark_ckpt.state_store.identity import Caller, Identity
from pyspark_ckpt.state_store.local.copies import LocalCopies, LocalCopy
from pyspark_ckpt.state_store.local.damage import is_of_the_copy
from pyspark_ckpt.state_store.local.damage_notes import read_notes
from pyspark_ckpt.state_store.local.files import make_folder
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.options import Options
from pyspark_ckpt.state_store.restore.restorer import Restorer
from pyspark_ckpt.state_store.restore.versions import Leased, LocalVersions
from pyspark_ckpt.state_store.snapshots.lag import LagTracker
from pyspark_ckpt.state_store.snapshots.policy import SnapshotPolicy
from pyspark_ckpt.state_store.transactions.operator_states import OperatorStates, States
from pyspark_ckpt.state_store.transactions.parts import close_parts, join
from pyspark_ckpt.state_store.transactions.scrub_counts import ScrubCounts
from pyspark_ckpt.state_store.transactions.shared import Shared
from pyspark_ckpt.state_store.transactions.staged_tables import Seals, StagedTable, refusing_damage
from pyspark_ckpt.state_store.transactions.ticket import Ticket, WorkerTask, ticket_path, write_ticket
from pyspark_ckpt.state_store.transactions.transaction import Committed, Status, Transaction


class Store:
    """Serves all versions of one store and makes new ones."""

    def __init__(
        self,
        identity: Identity,
        place: BlobPlace,
        checkpoint: BlobPlace,
        traffic: Traffic,
        epochs: Epochs,
        operators: OperatorStates,
        folder: Path,
        options: Options,
        shared: Shared,
    ) -> None:
        """Keep durable objects in ``place`` and local copies in ``folder``. ``traffic`` counts the requests."""
        self.identity = identity
        self.place = place
        self.options = options
        self.log = StoreLog("store", identity.short)
        self.checkpoint = checkpoint
        self._traffic = traffic
        self._operators = operators
        self._shared = shared
        self._tuning = shared.tuning.using(options.compression)
        self._lock = threading.RLock()
        self._closed = False
        self._copies = LocalCopies(folder, self._tuning, options.local_checkpoints, shared.sweeper, self.log)
        self._transactions: dict[int, Transaction] = {}
        self._moves: list[Future[None]] = []
        self._ingest_ms = 0.0
        self._damaged_told = 0
        self.lag = LagTracker(shared.clock)
        self.scrub_counts = ScrubCounts()
        self.policy = SnapshotPolicy(options, shared.forecast)
        restorer = Restorer(
            place, self._tuning, shared.pool, shared.failpoints, shared.forecast, self.log, str(identity)
        )
        self._versions = LocalVersions(self._copies, restorer, self.lag, self._lock, self._require_usable, self.log)
        self.decisions = Decisions(identity, place, checkpoint, epochs, self.log)
        self._is_state_left: bool | None = None
        self.newest: Marker | None = None
        """The base of the latest transaction of a query. Spark has certainly committed it."""

    @property
    def closed(self) -> bool:
        """Return whether the store has been closed."""
        return self._closed

    @property
    def tuning(self) -> Tuning:
        """Return the RocksDB settings of this store."""
        return self._tuning

    @property
    def tables(self) -> TableCount:
        """Return the table files of the live database after the last commit or restore."""
        return self._versions.tables

    @property
    def open_transactions(self) -> int:
        """Return how many transactions have not ended."""
        return len(self._transactions)

    def adopt(self) -> None:
        """Adopt the local copies that an earlier state server left."""
        with self._lock:
            self._copies.adopt()

    def begin(
        self, caller: Caller, version: int, commit_id: str | None, worker: WorkerTask | None, num_partitions: int | None
    ) -> Transaction:
        """Begin a transaction on a committed version. Until it ends, its reads see exactly that version.

        If there is a local copy of the version, this makes no remote request, except for the first ``worker`` of a run:
        see ``OperatorStates``. Raises NotFoundError (never committed or retired), InvalidInputError (other id, other
        number of partitions), FormatError, StorageError.
        """
        self._shared.failpoints.hit("begin.before")
        started = time.monotonic()
        self.await_moves()
        base = self.decisions.commit_of(caller, version, commit_id)
        leased = self._versions.lease(base)
        try:
            self._check_partitions(leased.meta, num_partitions)
            states = () if worker is None else self._states_of_operator(caller, leased.meta)
            transaction = self._open(caller, base, leased, worker, states)
        except BaseException:
            with self._lock:
                self._copies.release(leased.copy)
            raise
        self.lag.note_begin(base)
        with self._lock:
            if caller.run_id:  # a reader outside a query does not tell how far the query is
                self.newest = base
            self.decisions.decide(caller, base)
        self._shared.failpoints.hit("begin.after_ticket")
        transaction.metrics = {"load_ms": _ms_since(started), "restored": 0, "replayed_deltas": 0, **leased.metrics}
        return transaction

    def replay(
        self, caller: Caller, version: int, commit_id: str | None, start: int, start_id: str | None
    ) -> Transaction:
        """Begin a transaction on a version that is built from the snapshot of version ``start`` and deltas only.

        It uses no existing local copy. The new copy is deleted at the end of the transaction. Raises as
        ``Restorer.replay``; InvalidInputError if ``start`` is not 1 to ``version``.
        """
        started = time.monotonic()
        if not 1 <= start <= version:
            raise InvalidInputError(f"{self.identity}: version {version} cannot be replayed from version {start}.")
        base = self.decisions.commit_of(caller, version, commit_id)
        leased = self._versions.replay(base, start, start_id)
        try:
            transaction = self._open(caller, base, leased, None, ())
        except BaseException:
            with self._lock:
                self._copies.release(leased.copy)
            raise
        transaction.metrics = {"load_ms": _ms_since(started), **leased.metrics}
        return transaction

    def is_live(self, transaction: Transaction) -> bool:
        """Return whether the base of ``transaction`` is the live copy, which commits move forward."""
        return transaction.copy is self._copies.live

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

        Staged files are checked against their ``seals`` and their own checksums before anything is visible. After
        return, the version survives the loss of this machine; the local database follows in the background. A repeated
        call gets the same answer. In checkpoint format 1 the answer may name another commit of this run that was first.
        After an error, the transaction is ABORTED and the base is unchanged. Raises LifecycleError, InvalidInputError,
        StorageError.
        """
        with self._lock:
            if transaction.status is Status.COMMITTED and transaction.result is not None:
                return transaction.result
            self._require_usable()
            transaction.move(Status.PREPARED)
        try:
            meta, staged, result = self._make_durable(transaction, files, row_changes, num_partitions, seals)
        except BaseException:
            self._end(transaction, Status.ABORTED)
            raise
        with self._lock:
            transaction.result = result
            transaction.move(Status.COMMITTED)
            self._transactions.pop(transaction.number, None)
            transaction.drop_ticket()  # here, because the next transaction of the same task may use the same path
            self._moves = [move for move in self._moves if not move.done()]
            try:
                self._moves.append(self._shared.mover.submit(self._follow, transaction, meta, staged))
            except RuntimeError:  # this process is ending: the next one restores the version
                self._let_go(transaction)
        self._shared.failpoints.hit("commit.before_answer")
        return result

    def abort(self, transaction: Transaction) -> None:
        """Abort an open transaction. Do nothing if it has ended or is being committed."""
        with self._lock:
            if transaction.status is Status.OPEN:
                self._end(transaction, Status.ABORTED)

    def lease_for_snapshot(self, due: Callable[[int], bool]) -> LocalCopy | None:
        """Lease a frozen copy of the newest commit that Spark has asked for. None if it is not here or not ``due``."""
        with self._lock:
            newest = self._copies.find(self.newest) if self.newest not in {None, EMPTY} else None
            if self._closed or newest is None or not due(newest.marker.version):
                return None
            frozen = self._copies.checkpoint_live() if newest is self._copies.live else newest
            self._copies.lease(frozen)
            return frozen

    def discard_damaged(self, copy: LocalCopy, problem: object) -> None:
        """Forget a damaged local copy and all that share files with it. The next begin restores the version.

        Leased copies stay on disk until the lease ends. A copy that is already forgotten is no error.
        """
        with self._lock:
            self._versions.check_what_is_restored()
            if not self._closed:
                self._copies.discard_damaged(copy, problem)

    def report_damage(self, transaction: Transaction, failure: str) -> bool:
        """Handle the report that a reader could not read the local copy of a transaction.

        Discard the copy and return True, unless the ``failure`` is one of the machine, such as a full disk.
        """
        if not is_of_the_copy(failure):
            self.log.warning(
                "the local copy of %s is kept; its reader has failed for another reason: %s", transaction.base, failure
            )
            return False
        self.discard_damaged(transaction.copy, failure)
        return True

    def release(self, copy: LocalCopy) -> None:
        """Release a copy that was leased for a snapshot."""
        with self._lock:
            self._copies.release(copy)
            self._copies.prune()

    def close(self) -> None:
        """Abort open transactions, close the database, delete the local files. May be called twice."""
        with self._lock:
            if self._closed:
                return
            for transaction in list(self._transactions.values()):
                self.abort(transaction)
            self._closed = True
            self._copies.close(remove=True)

    def _check_partitions(self, meta: StoreMeta, num_partitions: int | None) -> None:
        if num_partitions is not None and meta.num_partitions not in (None, num_partitions):
            raise InvalidInputError(
                f"{self.identity}: the state was written with {meta.num_partitions} partitions, "
                f"but the query now runs with {num_partitions}.",
                hint=f"Set spark.sql.shuffle.partitions to {meta.num_partitions} for this checkpoint, or make a "
                f"checkpoint with {num_partitions} partitions from it: pyspark-ckpt rescale.",
            )

    def _states_of_operator(self, caller: Caller, own: StoreMeta) -> Sequence[States]:
        """Return the states that the program of a run is checked against. A reader outside a query has no program."""
        if not caller.run_id or own.marker == EMPTY:
            return ()
        return self._operators.of(caller.run_id, self.identity, own, self.place, self._traffic)

    def _open(
        self, caller: Caller, base: Marker, leased: Leased, worker: WorkerTask | None, states: Sequence[States]
    ) -> Transaction:
        number = next(self._shared.transaction_numbers)
        staging = self._shared.local_dir / "staging" / f"{number}-{uuid.uuid4().hex[:8]}"
        transaction = Transaction(
            number, base, new_commit_id(), leased.copy, leased.meta, staging, caller.format, caller.run_id
        )
        try:
            make_folder(staging, self._shared.local_dir)
            if worker is not None:
                self._write_ticket(transaction, worker, states)
        except OSError as problem:
            transaction.clear()
            raise StorageError(f"{self.identity}: could not make the staging folder {staging}: {problem}.") from problem
        with self._lock:
            self._transactions[number] = transaction
        return transaction

    def _write_ticket(self, transaction: Transaction, worker: WorkerTask, states: Sequence[States]) -> None:
        who, copy = self.identity, transaction.copy
        transaction.ticket = ticket_path(self._shared.local_dir, worker, who)
        live = self.is_live(transaction)
        write_ticket(
            transaction.ticket,
            Ticket(
                who.operator,
                who.partition,
                who.name,
                transaction.base.version,
                transaction.base.id,
                transaction.new_id,
                str(copy.db),
                live,
                str(transaction.staging),
                self.options.compression,
                transaction.meta,
                worker.key_schema,
                self._allows_non_restored_state([transaction.meta.states, *states]),
                tuple(states),
                worker.num_partitions,
            ),
        )

    def _allows_non_restored_state(self, states: Iterable[States]) -> bool:
        """Return whether the restore that made the checkpoint allows it. Makes one request per store."""
        if self._is_state_left is None and any(map(is_keyed, chain.from_iterable(states))):
            self._is_state_left = bool(self.checkpoint.list(CHECKPOINT_FOLDER, prefix=NON_RESTORED_STATE_NAME))
        return bool(self._is_state_left)

    def _make_durable(
        self,
        transaction: Transaction,
        files: Sequence[str],
        row_changes: Mapping[int, int],
        num_partitions: int | None,
        seals: Seals,
    ) -> tuple[StoreMeta, Sequence[StagedTable], Committed]:
        failpoints, started = self._shared.failpoints, time.monotonic()
        if transaction.meta.marker != transaction.base:  # the commit could be written, but never restored
            raise InternalError(f"{self.identity}: a commit on {transaction.base} has states of another version.")
        # 1. Collect what the shim and the workers staged. If the shim has written nothing: a marker row alone.
        try:
            who = f"{self.identity}, {transaction.target}"
            with refusing_damage(who):
                joined = join(transaction.meta, close_parts(transaction.staging, transaction.new_id, self._tuning))
                paths = transaction.find_staged(files, seals) or [self._marker_file(transaction)]
                paths += transaction.find_staged(joined.files, joined.seals)
            known = {**seals, **joined.seals}
            staged = [StagedTable(path, known.get(path.name), who) for path in paths]
            meta = joined.meta.commit(transaction.new_id, {**row_changes, **joined.row_changes}, num_partitions)
        except InvalidInputError as problem:
            raise InvalidInputError(f"{self.identity}: {problem.message}", hint=problem.hint) from problem
        if self.options.remote and transaction.base == EMPTY:
            point_to(self.place, self.checkpoint, self.identity)
        # 2. Write one remote object. From now on the version exists, but nobody knows its id.
        failpoints.hit("commit.before_upload")
        joined_at = time.monotonic()
        size_bytes = write_delta(self.place, DeltaName(transaction.target, transaction.base), meta, staged)
        uploaded = time.monotonic()
        self._shared.forecast.note_write(size_bytes, uploaded - joined_at)
        self.lag.note_commit(transaction.target.version, size_bytes)
        failpoints.hit("commit.after_upload")
        metrics: dict[str, int | float] = {
            "upload_ms": _ms(uploaded - started),
            "ingest_ms": self._ingest_ms,
            "delta_bytes": size_bytes,
            "superseded": 0,
            **joined.metrics,
        }
        # 3. Format 1 only: find which commit of this version is valid. In format 2, Spark's commit log decides.
        stands = transaction.target
        if transaction.format == 1:
            caller = Caller(transaction.run_id, transaction.format, 0)
            stands = self.decisions.settle(caller, DeltaName(transaction.target, transaction.base))
            metrics["superseded"] = int(stands != transaction.target)
            metrics["winner_ms"] = _ms_since(uploaded)
        metrics.update(self._upkeep_metrics(transaction.target.version))
        metrics.update(**self._traffic.take(), **self._traffic.take_wait())
        return meta, staged, Committed(stands.version, stands.id, metrics, meta.states)

    def _upkeep_metrics(self, version: int) -> dict[str, int]:
        """Return metrics of the table files, of damage, and of the cost of restoring ``version`` if that is known."""
        damaged, self._damaged_told = self._copies.damaged - self._damaged_told, self._copies.damaged
        metrics = {
            "tables": self.tables.files,
            "table_bytes": self.tables.size_bytes,
            "damaged_copies": damaged,
            **self.scrub_counts.take(),
        }
        lag = self.lag.up_to(version)
        if lag is not None:
            metrics["snapshot_version"] = lag.snapshot_version
            metrics["deltas_since_snapshot"] = lag.deltas
            metrics["delta_bytes_since_snapshot"] = lag.delta_bytes
            metrics["restore_forecast_ms"] = round(self.policy.restore_s(lag, self.tables.size_bytes) * 1000)
        return metrics

    def _follow(self, transaction: Transaction, meta: StoreMeta, staged: Sequence[StagedTable]) -> None:
        """Apply a valid commit to the live database if that still is at the base. The base stays as a frozen copy.

        The commit is durable and was answered: a failure costs a restore, but no data.
        """
        failpoints, started = self._shared.failpoints, time.monotonic()
        stands = transaction.result is not None and transaction.result.id == transaction.new_id
        try:
            with self._lock:
                live = self._copies.live
                if stands and not self._closed and live is not None and live.marker == transaction.base:
                    self._copies.checkpoint_live()
                    failpoints.hit("commit.before_ingest")
                    for table in staged:
                        table.require_unchanged()
                    self._copies.advance(meta, [table.path for table in staged])
                    failpoints.hit("commit.after_ingest")
                    self._ingest_ms = _ms_since(started)
                    self._shared.forecast.note_ingest(1, self._ingest_ms / 1000)
                    tables = self._copies.live_tables()
                    self._versions.tables = TableCount.of(tables)
                    if any(map(is_keyed, meta.states)):
                        self._shared.columns.follow(live, tables, self.log, self.discard_damaged)
        except Exception:
            self.log.exception("%s is durable, but has to be restored: the local database failed", transaction.target)
        try:
            self._let_go(transaction)
        except Exception:
            self.log.exception("local files of %s could not be tidied up", transaction.target)

    def await_moves(self) -> None:
        """Wait until the live database has followed all commits, which takes milliseconds."""
        wait(self._moves)

    def _marker_file(self, transaction: Transaction) -> Path:
        path = transaction.staging / "marker.sst"
        write_table_file(path, [(MARKER_KEY, transaction.target.encode())], self._tuning)
        return path

    def _end(self, transaction: Transaction, status: Status) -> None:
        with self._lock:
            transaction.move(status)
            self._transactions.pop(transaction.number, None)
        self._let_go(transaction)

    def _let_go(self, transaction: Transaction) -> None:
        for failure in read_notes(transaction.staging):
            self.report_damage(transaction, failure)
        with self._lock:
            self._copies.release(transaction.copy)
            if not self._closed:
                self._copies.prune()
        transaction.clear()

    def _require_usable(self) -> None:
        if self._closed:
            raise LifecycleError(f"{self.identity} is closed.", hint="Open the store again.", retryable=True)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _ms_since(started: float) -> float:
    return _ms(time.monotonic() - started)
