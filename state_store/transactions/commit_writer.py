"""Make a commit durable: collect what was staged, write one remote object, find which commit of the version stands."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark_ckpt.state_store.attempts.decisions import Decisions
from pyspark_ckpt.state_store.database import write_table_file
from pyspark_ckpt.state_store.errors import InternalError, InvalidInputError
from pyspark_ckpt.state_store.format.delta import pour_delta, write_delta
from pyspark_ckpt.state_store.format.keys import EMPTY, MARKER_KEY
from pyspark_ckpt.state_store.format.meta import StoreMeta
from pyspark_ckpt.state_store.format.names import DeltaName, ReplacedName, parse
from pyspark_ckpt.state_store.format.remote import point_to
from pyspark_ckpt.state_store.identity import Caller
from pyspark_ckpt.state_store.packs.gathering import PACKED_BYTES
from pyspark_ckpt.state_store.packs.slots import Slot, locate
from pyspark_ckpt.state_store.snapshots.lag import LagTracker
from pyspark_ckpt.state_store.transactions.context import StoreContext
from pyspark_ckpt.state_store.transactions.local_side import LocalSide
from pyspark_ckpt.state_store.transactions.metrics import UpkeepMetrics, ms_since, to_ms
from pyspark_ckpt.state_store.transactions.parts import close_parts, join
from pyspark_ckpt.state_store.transactions.staged_tables import Seals, StagedTable, refusing_damage
from pyspark_ckpt.state_store.transactions.transaction import Committed, Transaction


class CommitWriter:
    """Writes the commits of one store. Safe to call from many threads: attempts of a version do not wait."""

    def __init__(
        self,
        context: StoreContext,
        local: LocalSide,
        decisions: Decisions,
        lag: LagTracker,
        upkeep: UpkeepMetrics,
    ) -> None:
        """Write to the place of ``context``. ``local`` and ``upkeep`` have metrics, and ``lag`` counts the deltas."""
        self._context = context
        self._shared = context.shared
        self._local = local
        self._decisions = decisions
        self._lag = lag
        self._upkeep = upkeep
        self._has_packed = False

    def make_durable(
        self,
        transaction: Transaction,
        files: Sequence[str],
        row_changes: Mapping[int, int],
        num_partitions: int | None,
        seals: Seals,
    ) -> tuple[StoreMeta, Sequence[StagedTable], Committed]:
        """Write the commit of a prepared transaction. Return its metadata, its checked files, and the answer.

        On return, the version survives the loss of this machine, or will when its pack does. The answer may name
        another commit of this run that was first (format 1). Raises InvalidInputError, StorageError, InternalError,
        FormatError, ConflictError.
        """
        context, tuning = self._context, self._context.tuning
        failpoints, started = self._shared.failpoints, time.monotonic()
        if transaction.meta.marker != transaction.base:  # the commit could be written, but never restored
            raise InternalError(f"{context.identity}: a commit on {transaction.base} has states of another version.")
        # 1. Collect what the shim and the workers staged. If they have written nothing: a marker row alone.
        try:
            who = f"{context.identity}, {transaction.target}"
            with refusing_damage(who):
                joined = join(transaction.meta, close_parts(transaction.staging, transaction.target, tuning))
                paths = transaction.find_staged(files, seals) + transaction.find_staged(joined.files, joined.seals)
                paths = paths or [self._marker_file(transaction)]
            known = {**seals, **joined.seals}
            staged = [StagedTable(path, known.get(path.name), who) for path in paths]
            changes = {**row_changes, **joined.row_changes}
            meta = joined.meta.commit(transaction.new_id, changes, num_partitions, joined.digests)
            self._shared.agreement.require(context.identity, transaction.run_id, meta)
        except InvalidInputError as problem:
            raise InvalidInputError(f"{context.identity}: {problem.message}", hint=problem.hint) from problem
        if context.options.remote and transaction.base == EMPTY:
            point_to(context.place, context.checkpoint, context.identity)
        context.epochs.require_newest(transaction.run_id, transaction.target.version, context.identity)
        # 2. Write one remote object. From now on the version exists, but nobody knows its id.
        failpoints.hit("commit.before_upload")
        size_bytes = self._write(transaction, meta, staged)
        uploaded = time.monotonic()
        self._lag.note_commit(transaction.target.version, size_bytes)
        failpoints.hit("commit.after_upload")
        metrics: dict[str, int | float] = {
            "upload_ms": to_ms(uploaded - started),
            "ingest_ms": self._local.ingest_ms,
            "delta_bytes": size_bytes,
            "superseded": 0,
            "packed_commits": int(context.place.knows(transaction.target)),
            **joined.metrics,
        }
        # 3. Format 1 only: find which commit of this version is valid. In format 2, Spark's commit log decides.
        stands = transaction.target
        if transaction.format == 1:
            caller = Caller(transaction.run_id, transaction.format, 0)
            stands = self._decisions.settle(caller, DeltaName(transaction.target, transaction.base))
            metrics["superseded"] = int(stands != transaction.target)
            metrics["winner_ms"] = ms_since(uploaded)
        metrics.update(self._upkeep.measure(transaction.target.version))
        metrics.update(**context.traffic.take(), **context.traffic.take_wait())
        located = context.place.find_id(stands)
        return meta, staged, Committed(stands.version, located, metrics, meta.states, transaction.pack)

    def _write(self, transaction: Transaction, meta: StoreMeta, staged: Sequence[StagedTable]) -> int:
        """Write the delta of a commit, into a pack if others commit now; return its size in bytes.

        With ``durability=batch``, it may be durable later, with the pack that the transaction then names.
        """
        context, target, base = self._context, transaction.target, transaction.base
        place, name = context.place, DeltaName(target, base)
        slot: Slot | None
        if base != EMPTY:
            place.note(base.version, transaction.located)  # a reader may have found its pack missing for a moment
        lag = self._lag.up_to(base.version)
        # A snapshot of another line of history may be newer than the base, whose place only this chain tells.
        chain = place.chain(base, 0 if lag is None else min(lag.snapshot_version, base.version))
        # The first delta makes the folder of the store, by which Spark finds it.
        may_pack = transaction.format > 1 and base != EMPTY and context.options.pack_commits
        if not may_pack or sum(table.path.stat().st_size for table in staged) > PACKED_BYTES:
            began = time.monotonic()
            size_bytes = write_delta(place, name, meta, staged, chain)
            self._shared.forecast.note_write(size_bytes, time.monotonic() - began)
            place.note(target.version, target.id, base)
            return size_bytes
        if not self._has_packed:
            self._withdraw_from(base.version)
            self._has_packed = True
        content = io.BytesIO()
        pour_delta(content, meta, staged, chain)
        if context.options.is_durable_by_batch:
            slot = context.packs.deferred.add(place, context.identity, name, content.getvalue())
            transaction.pack = slot.pack
        else:
            slot = context.packs.gathering.write(place, context.identity, name, content.getvalue())
        place.note(target.version, locate(target.id, slot), base, self._shared.clock())
        return len(content.getvalue())

    def _withdraw_from(self, version: int) -> None:
        """Withdraw what an earlier life of the store has said: this one's commits up to a version that is to come.

        One listing, before this process writes its first pack. Raises StorageError.
        """
        place = self._context.place
        for blob in place.list():
            name = parse(blob.name)
            if isinstance(name, ReplacedName) and name.version >= version:
                place.delete(blob.name)

    def _marker_file(self, transaction: Transaction) -> Path:
        path = transaction.staging / "marker.sst"
        write_table_file(path, [(MARKER_KEY, transaction.target.encode())], self._context.tuning)
        return path
