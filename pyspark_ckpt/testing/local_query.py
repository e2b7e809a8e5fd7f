"""A query with one keyed operator, in this process: its checkpoint and its state server, as Spark would have them."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from pyspark_ckpt.offline.writing.first_files import FIRST_CONFS, NO_OFFSET, describe_operator
from pyspark_ckpt.operators.declarations.operator import GROUPS, ROUTE_SCHEMA, SPARKS_NAME, KeyedOperator
from pyspark_ckpt.operators.session.told_operators import Clocks
from pyspark_ckpt.operators.task.group_times import read_group
from pyspark_ckpt.pyspark_releases import has_commit_ids_for_all
from pyspark_ckpt.state_store.attempts.commit_log import read_ids
from pyspark_ckpt.state_store.blobs import HadoopSettings, place_at
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.query.entries import PARTITIONS_CONF
from pyspark_ckpt.state_store.checkpoints.query.files import find_watermarks, list_batches
from pyspark_ckpt.state_store.checkpoints.query.operators import Operator
from pyspark_ckpt.state_store.database import Tuning, write_table_file
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.format.keys import MARKER_KEY
from pyspark_ckpt.state_store.format.meta import Descriptor
from pyspark_ckpt.state_store.format.names import PROVIDER_CLASS, PROVIDER_CONF, WATERMARKS_FOLDER
from pyspark_ckpt.state_store.format.remote import DEFAULT_STORE, store_folder
from pyspark_ckpt.state_store.format.spark_groups import GroupTimesRow, encode_route_key
from pyspark_ckpt.state_store.identity import Caller, Identity
from pyspark_ckpt.state_store.options import parse
from pyspark_ckpt.state_store.server.homes import lock_folder
from pyspark_ckpt.state_store.server.stores import Handle, Stores
from pyspark_ckpt.state_store.transactions.ticket import Ticket, WorkerTask, read_ticket, ticket_path
from pyspark_ckpt.state_store.transactions.transaction import Status, Transaction
from pyspark_ckpt.testing.local_source import LocalSource

OPERATOR = 0
SNAPSHOT_EVERY = 10
"""After so many batches, check whether a snapshot is due."""
CHECKPOINT = "checkpoint"
"""The name of the checkpoint in the folder of a query."""
_TUNING = Tuning(1 << 20)


@dataclass
class PartitionBatch:
    """One partition in one attempt of a batch. ``group``: the row that Spark has of the partition's group."""

    partition: int
    handle: Handle
    transaction: Transaction
    ticket: Ticket
    group: GroupTimesRow | None


class LocalQuery:
    """The checkpoint of a query, and the process that runs its batches."""

    def __init__(self, folder: Path, operator: KeyedOperator, settings: Mapping[str, str]) -> None:
        """Begin a new query in ``folder``, or continue the one that is there. ``settings``: options of the server."""
        self.checkpoint = folder / CHECKPOINT
        self._folder = folder
        self._operator = operator
        self._settings = settings
        self._attempts = count(1)
        self._homes = count(1)
        self._owner = lock_folder(folder / "owner")
        if self._owner is None:
            raise LifecycleError(f"Another harness uses {folder}.", hint="Give each harness a folder of its own.")
        self._place = place_at(str(self.checkpoint))
        try:
            if not (self.checkpoint / "metadata").exists():
                self._write_first_files()
            self.version = max(list_batches(self._place, "commits"), default=-1) + 1
            self._require_own_kind()
            self._ids = self._read_ids()
            self._confs = FIRST_CONFS if self.version == 0 else self._read_entry("offsets")["conf"]
            is_second = has_commit_ids_for_all() if self.version == 0 else bool(self._ids)
            self._format = 2 if is_second else 1
            self._start()
        except BaseException:
            self._owner.close()
            raise

    @property
    def batch_id(self) -> int:
        """The number of the next batch."""
        return self.version

    @contextmanager
    def begin(self) -> Iterator[list[PartitionBatch]]:
        """Begin an attempt of the next batch, in all partitions. Unless it commits, its writes are dropped."""
        begun: list[PartitionBatch] = []
        self._begin_again()
        try:
            for partition in range(self._operator.partitions):
                begun.append(self._begin(partition))  # noqa: PERF401 - those begun must end if the next one fails
            yield begun
        finally:
            for each in begun:
                if each.transaction.status is Status.OPEN:
                    each.handle.store.abort(each.transaction)

    def commit(
        self, batch: Sequence[PartitionBatch], clocks: Clocks, next_watermark_ms: int, seen: str | None
    ) -> dict[str, int]:
        """Commit a batch of all partitions; return its metrics. ``seen``: what the query keeps about its inputs."""
        metrics: dict[str, int] = {}
        ids: list[list[str]] = []
        self._has_failed = True  # until all is done
        for each in batch:
            done = each.handle.store.commit(
                each.transaction, *self._stage_group(each), num_partitions=self._operator.partitions
            )
            ids.append([done.id])
            for name, number in done.metrics.items():
                metrics[name] = metrics.get(name, 0) + int(number)
        if seen is not None:
            self._write(f"{WATERMARKS_FOLDER}/{self.version}", seen)
        self._log(clocks, next_watermark_ms, ids)
        self._has_failed = False
        self._ids, self.version = [each for (each,) in ids] if self._format > 1 else [], self.version + 1
        for each in batch:
            self._groups[each.partition] = each.group
            if self.version % SNAPSHOT_EVERY == 0:
                each.handle.maintenance.snapshot(force=False)
        return metrics

    @contextmanager
    def open_state(self) -> Iterator[LocalSource]:
        """Open what the last batch has committed."""
        self._begin_again()
        with ExitStack() as stack:
            tickets = []
            for partition in range(len(self._handles)):
                begun = self._begin(partition)
                stack.callback(begun.handle.store.abort, begun.transaction)
                tickets.append(begun.ticket)
            yield LocalSource(_make_operator(len(tickets)), tickets)

    def read_clocks(self) -> Clocks | None:
        """Return the clocks of the next batch, as after a restart; None before the first."""
        if self.version == 0:
            return None
        offsets, commit = self._read_entry("offsets"), self._read_entry("commits")
        watermark_ms = max(offsets["batchWatermarkMs"], commit["nextBatchWatermarkMs"])
        return Clocks(watermark_ms, offsets["batchTimestampMs"], offsets["batchWatermarkMs"])

    def read_seen(self) -> str | None:
        """Return what the last batch recorded about inputs that can be idle; None if it recorded nothing."""
        names = find_watermarks(self._place, self.version - 1)
        return self._place.get(names[0]).decode() if names else None

    def _begin_again(self) -> None:
        """Begin another run if a commit has failed, as a query does: some partitions may have committed."""
        if self._has_failed:
            self.restart()

    def restart(self) -> None:
        """End the state server, as when its executor is lost, and begin another."""
        self._end_server()
        self._start()

    def stop(self) -> None:
        """End the state server, and unlock the folder."""
        self._end_server()
        if self._owner is not None:
            self._owner.close()

    def _end_server(self) -> None:
        """End the state server. Its local files are deleted."""
        self._stores.shut_down()
        shutil.rmtree(self._local_dir, ignore_errors=True)

    def _start(self) -> None:
        self._has_failed = False
        local_dir = self._folder / f"local-{next(self._homes)}"
        folder = lock_folder(local_dir)
        if folder is None:
            raise LifecycleError(f"Another query uses {local_dir}.", hint="Give each harness a folder of its own.")
        options = parse(self._settings)
        self._stores = Stores(folder, options)
        self._local_dir = local_dir
        self._groups: dict[int, GroupTimesRow | None] = {}
        caller = Caller(uuid.uuid4().hex, self._format, 100)
        self._handles = [
            self._stores.open(
                str(self.checkpoint / store_folder(identity)), str(self.checkpoint), identity, caller, options,
                HadoopSettings({}),
            )
            for identity in self._identities()
        ]  # fmt: skip

    def _identities(self) -> list[Identity]:
        return [Identity(OPERATOR, each, DEFAULT_STORE) for each in range(self._operator.partitions)]

    def _begin(self, partition: int) -> PartitionBatch:
        handle, operator = self._handles[partition], self._operator
        worker = WorkerTask(next(self._attempts), "harness", num_partitions=operator.partitions)
        handle.store.follower.await_moves()
        transaction = handle.store.begin(
            handle.caller, self.version, self._ids[partition] if self._ids else None, worker, operator.partitions
        )
        ticket = read_ticket(ticket_path(self._local_dir, worker, Identity(OPERATOR, partition, DEFAULT_STORE)))
        if partition not in self._groups:
            self._groups[partition] = read_group(ticket)
        return PartitionBatch(partition, handle, transaction, ticket, self._groups[partition])

    def _stage_group(self, batch: PartitionBatch) -> tuple[list[str], dict[int, int]]:
        """Write the row of the group; return the file, and how the number of rows changes."""
        store, transaction = batch.handle.store, batch.transaction
        before = transaction.meta.state(GROUPS)
        number = store.create_state(transaction, GROUPS, Descriptor(key_schema=ROUTE_SCHEMA))
        if batch.group is None:
            return [], {}
        key = encode_route_key(number, batch.partition, self._operator.partitions)
        rows = {MARKER_KEY: transaction.target.encode(), key: batch.group.encode()}
        write_table_file(transaction.staging / "group.sst", sorted(rows.items()), _TUNING)
        return ["group.sst"], {number: int(before is None or not before.rows)}

    def _require_own_kind(self) -> None:
        """Raise InvalidInputError unless the query has one operator, with as many partitions as the harness."""
        operators = Checkpoint(str(self.checkpoint), parse({})).operators()
        if [(each.number, each.stores) for each in operators] != [(OPERATOR, (DEFAULT_STORE,))]:
            names = ", ".join(f"{each.number}: {each.name}" for each in operators)
            raise InvalidInputError(
                f"The query in {self.checkpoint} has the stateful operators {names}; a harness runs one keyed operator."
            )
        (operator,) = operators
        if operator.partitions != self._operator.partitions:
            raise InvalidInputError(
                f"The query in {self.checkpoint} has {operator.partitions} partitions, but the harness has the "
                f"parallelism {self._operator.partitions}.",
                hint="Take a savepoint, and give it to a harness with another folder as savepoint=.",
            )

    def _read_entry(self, log: str) -> dict[str, Any]:
        """Return the entry for the last batch in one of Spark's logs."""
        found: dict[str, Any] = json.loads(self._place.get(f"{log}/{self.version - 1}").split(b"\n")[1])
        return found

    def _read_ids(self) -> list[str]:
        """Return the ids of the last commit by partition; none in checkpoint format 1."""
        return [store for (store,) in read_ids(self._place, self.version).get(str(OPERATOR), [])]

    def _write_first_files(self) -> None:
        self._write("metadata", json.dumps({"id": str(uuid.uuid4())}))
        partitions = self._operator.partitions
        described = describe_operator(_make_operator(partitions), partitions)
        self._write(f"state/{OPERATOR}/_metadata/metadata", described)

    def _log(self, clocks: Clocks, next_watermark_ms: int, ids: Sequence[Sequence[str]]) -> None:
        """Write the entries of Spark's logs for a batch that has committed."""
        partitions = str(self._operator.partitions)
        conf = {**self._confs, PARTITIONS_CONF: partitions, PROVIDER_CONF: PROVIDER_CLASS}
        entry = {
            "batchWatermarkMs": max(0, clocks.watermark_ms),
            "batchTimestampMs": clocks.processing_ms,
            "conf": conf,
        }
        sources = len(self._operator.inputs) + (self._operator.broadcast is not None)
        self._write(f"offsets/{self.version}", "\n".join(["v1", json.dumps(entry), *[NO_OFFSET] * sources]))
        commit = {"nextBatchWatermarkMs": max(0, next_watermark_ms)}
        named = {"stateUniqueIds": {str(OPERATOR): ids}} if self._format > 1 else {}
        self._write(f"commits/{self.version}", f"v{self._format}\n{json.dumps({**commit, **named})}")

    def _write(self, name: str, text: str) -> None:
        """Write one of Spark's files, without waiting for the disk."""
        path = self.checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _make_operator(partitions: int) -> Operator:
    """Return the only operator of the query, as Spark has it."""
    return Operator(OPERATOR, SPARKS_NAME, (DEFAULT_STORE,), partitions)
