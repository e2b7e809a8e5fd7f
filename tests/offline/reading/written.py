"""Checkpoints of one keyed operator, written as its query writes them, without Spark around it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type

from pyspark_ckpt.operators.bound.base import Kept
from pyspark_ckpt.operators.bound.declared_states import DeclaredStates
from pyspark_ckpt.operators.declarations.operator import ProcessorState
from pyspark_ckpt.operators.declarations.states import Declared
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec
from pyspark_ckpt.operators.encoding.spark_hash import SparkHash
from pyspark_ckpt.operators.session.worker import WorkerSession
from pyspark_ckpt.operators.task.staging import finish, flush, sweep
from pyspark_ckpt.operators.types.value_types import ValueType
from pyspark_ckpt.state_store.transactions.ticket import Ticket, read_ticket
from tests.labs.lab import DESCRIPTOR, Lab

UID = "it"
GROUPS = 128

Kinds = Mapping[str, pa.DataType]
Key = Sequence[Any]
Work = Callable[..., Any]


class Written:
    """A checkpoint whose operator has some partitions and is keyed by columns of the given types."""

    def __init__(
        self, folder: Path, keys: Mapping[str, pa.DataType], partitions: int = 1, uid: str = UID, **options: str
    ) -> None:
        self.lab = Lab(folder, **options)
        self.path = str(self.lab.checkpoint)
        self.uid = uid
        self.partitions = partitions
        self._keys = keys
        self._codec, self._hash = KeyCodec(list(keys.values())), SparkHash(list(keys.values()))
        self._attempts = count(1)
        self._ids: list[str | None] = [None] * partitions
        self._handles: list[int] = []
        self.version = 0
        self.has_sparks_state = False
        """Whether each store has Spark's own state as well, as in a query."""
        self.lab.name_query()
        self._write_operator()
        for partition in range(partitions):
            self.lab.partition = partition
            self._handles.append(self.lab.open())

    def suffix(self, key: Key) -> bytes:
        """Hash and bytes of a key."""
        return self._hash(key).to_bytes(4, "big") + self._codec.encode(key)

    def partition_of(self, key: Key) -> int:
        return (self._hash(key) * GROUPS >> 32) * self.partitions // GROUPS

    def batch(
        self,
        states: Mapping[str, tuple[Declared, Kinds]],
        work: Iterable[tuple[Key, Work]],
        now_ms: int = 0,
        *,
        file_each: bool = False,
        is_killed: bool = False,
    ) -> None:
        """A batch: for each key its work with the states. ``file_each``: a table file for each key.

        ``is_killed``: the query ends when all tasks have committed, and the batch is not committed.
        """
        placed = [(self.partition_of(key), key, each) for key, each in work]
        declared = DeclaredStates(
            self.uid,
            tuple(
                ProcessorState(name, state, {what: _value_type(kind) for what, kind in kinds.items()})
                for name, (state, kinds) in states.items()
            ),
        )
        committed = list(self._ids)
        for partition in range(self.partitions):
            of_partition = [(key, each) for place, key, each in placed if place == partition]
            self._run(partition, declared, of_partition, now_ms, file_each=file_each)
        if is_killed:
            self._ids = committed
            return
        self._log_batch(now_ms)
        self.version += 1

    def snapshot(self) -> None:
        """Make a snapshot of the newest version of each store."""
        for handle, commit in zip(self._handles, self._ids, strict=True):
            self._begin(handle, commit)
            self.lab.server.call("snapshot", handle=handle, force=True)

    def clean_up(self) -> None:
        """Delete what the newest version of each store does not need."""
        for partition, commit in enumerate(self._ids):
            self.lab.partition = partition
            handle = self.lab.open(keep=0)
            self._begin(handle, commit)
            self.lab.server.call("cleanup", handle=handle)

    def close(self) -> None:
        """End the server."""
        self.lab.server.stores.shut_down()

    def _begin(self, handle: int, commit: str | None) -> None:
        answer = self.lab.server.call("begin", handle=handle, version=self.version, id=commit)
        self.lab.server.call("abort", txn=answer["txn"])

    def _run(
        self,
        partition: int,
        declared: DeclaredStates,
        work: Sequence[tuple[Key, Work]],
        now_ms: int,
        *,
        file_each: bool,
    ) -> None:
        attempt = next(self._attempts)
        call = self.lab.server.call
        answer = call(
            "begin", handle=self._handles[partition], version=self.version, id=self._ids[partition], attempt=attempt
        )
        if self.has_sparks_state:
            call("create_state", txn=answer["txn"], name="default", descriptor=DESCRIPTOR)
        if work:
            (path,) = (self.lab.local_dir / "tickets").glob(f"{attempt}-*.json")
            self._process(read_ticket(path), declared, work, now_ms, file_each=file_each)
        done = call("commit", txn=answer["txn"], files=[], rows={}, num_partitions=self.partitions)
        self._ids[partition] = done["id"]

    def _process(
        self,
        ticket: Ticket,
        declared: DeclaredStates,
        work: Sequence[tuple[Key, Work]],
        now_ms: int,
        *,
        file_each: bool,
    ) -> None:
        types = {name: str(kind) for name, kind in self._keys.items()}
        described = declared.descriptors(ticket, types, {"max_parallelism": GROUPS})
        session = WorkerSession(ticket, described, self._codec, {"processing": now_ms, "event": now_ms})
        holder, bound = declared.bind(_Holder(), session)
        kept: list[Kept] = bound
        sweep(session, kept, 0)
        for suffix, each in sorted(((self.suffix(key), each) for key, each in work), key=itemgetter(0)):
            session.position.suffix = suffix
            each(holder)
            if file_each:
                flush(session, kept, suffix + b"\xff" * 8)
        finish(session, kept)

    def _write_operator(self) -> None:
        path = self.lab.checkpoint / "state" / "0" / "_metadata" / "metadata"
        path.parent.mkdir(parents=True)
        stores = [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": self.partitions}]
        info = {"operatorInfo": {"operatorId": 0, "operatorName": "keyed"}, "stateStoreInfo": stores}
        path.write_text("v1\n" + json.dumps(info))

    def _log_batch(self, now_ms: int) -> None:
        named = {"0": [[commit] for commit in self._ids]}
        confs = {"spark.sql.shuffle.partitions": str(self.partitions)}
        for folder, entry in (
            ("commits", {"nextBatchWatermarkMs": now_ms, "stateUniqueIds": named}),
            ("offsets", {"batchWatermarkMs": now_ms, "batchTimestampMs": now_ms, "conf": confs}),
        ):
            (self.lab.checkpoint / folder).mkdir(exist_ok=True)
            offset = f'\n{{"logOffset":{self.version}}}' if folder == "offsets" else ""
            (self.lab.checkpoint / folder / str(self.version)).write_text(f"v1\n{json.dumps(entry)}{offset}")
        sources = self.lab.checkpoint / "sources" / "0"
        sources.mkdir(parents=True, exist_ok=True)
        found = {"path": f"file:///in/{self.version}", "batchId": self.version}
        (sources / str(self.version)).write_text(f"v1\n{json.dumps(found)}")


class _Holder:
    """Gets the states as attributes."""


def _value_type(kind: pa.DataType) -> ValueType:
    return ValueType(json.loads(from_arrow_type(kind).json()), kind)
