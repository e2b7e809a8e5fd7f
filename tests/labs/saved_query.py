"""A checkpoint of a query with every layout of state, written without Spark, and what must be in it wherever it goes.

There are three kinds of operators: 0 is native, two stores of two states each, one of them in key order; 1 needs all
rows in one place; 2 is a keyed one. Partitions learn of states in different orders, so that their numbers differ.
"""

from __future__ import annotations

import io
import json
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import xxhash

from pyspark_ckpt.state_store.blobs import BlobPlace, place_at
from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.inventory import list_operators
from pyspark_ckpt.state_store.checkpoints.ownership import claim
from pyspark_ckpt.state_store.checkpoints.workplace import StoreVersion, Workplace
from pyspark_ckpt.state_store.database import Database, Tuning, write_table_file
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.format.delta import pour_delta, put_delta
from pyspark_ckpt.state_store.format.keys import (
    EMPTY_ID,
    FIRST_KEYED_COUNTER,
    HASH_BYTES,
    MARKER_KEY,
    ORDERED_BIT,
    STATE_BYTES,
    Marker,
    encode_hashed_key,
    encode_ordered_key,
    read_hash,
    state_range,
)
from pyspark_ckpt.state_store.format.meta import EMPTY_META, Descriptor, StoreMeta
from pyspark_ckpt.state_store.format.names import DeltaName
from pyspark_ckpt.state_store.format.remote import POINTER_NAME, Pointer, folder_in, folder_of_query, store_folder
from pyspark_ckpt.state_store.format.spark_groups import GroupTimesRow, encode_route_key
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.local.copies import LocalCopy
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.options import Options, parse
from pyspark_ckpt.state_store.packs.lineages import read_lineage
from pyspark_ckpt.state_store.packs.pack import write_pack
from pyspark_ckpt.state_store.packs.slots import PACKS_FOLDER, Slot, locate, split_id
from pyspark_ckpt.state_store.savepoints.restoring import claim as restore_claim
from pyspark_ckpt.state_store.savepoints.restoring import claimed_savepoint, query_restore
from pyspark_ckpt.state_store.savepoints.savepoint import Kind
from pyspark_ckpt.state_store.snapshots.writer import SnapshotWriter
from tests.labs.lab import QUERY, describe_operator

SAVEPOINT_KINDS: tuple[Kind, ...] = ("native", "canonical")
UID = "visits"
MAX_PARALLELISM = 32
KEYED = {"keyed": UID, "max_parallelism": MAX_PARALLELISM}
EXPIRY = f"{UID}/seen/expiry"
KEY = {"type": "struct", "fields": [{"name": "k", "type": "string", "nullable": True, "metadata": {}}]}
NO_KEY = {"type": "struct", "fields": []}
STATES: Mapping[tuple[int, str], Mapping[str, Descriptor]] = {
    (0, "left"): {"rows": Descriptor(key_schema=KEY), "by time": Descriptor(ordered=True, key_schema=KEY)},
    (0, "right"): {"rows": Descriptor(key_schema=KEY), "counts": Descriptor(key_schema=KEY)},
    (1, "default"): {"default": Descriptor(key_schema=NO_KEY)},
    (2, "default"): {
        "default": Descriptor(key_schema=KEY),
        f"{UID}/seen": Descriptor(key_encoder=KEYED),
        f"{UID}/words": Descriptor(key_encoder=KEYED),
        f"{UID}/timers": Descriptor(ordered=True, key_encoder=KEYED),
        EXPIRY: Descriptor(ordered=True, key_encoder={**KEYED, "kind": "expiry"}),
    },
}
NAMES = {0: "symmetricHashJoin", 1: "stateStoreSave", 2: "applyInPandasWithState"}
KINDS = {name: kind for kind, name in NAMES.items()}
SPARKS_OWN = 2, "default", "default"

Logical = dict[tuple[int, str, str], dict[bytes, bytes]]
"""Rows by kind of operator, store and state: the key that the user has given, and the value."""

Changes = dict[tuple[int, str, str], dict[bytes, bytes | None]]
"""What one batch does to them; None: the row is gone."""


@dataclass
class Query:
    """A query that has been written: its rows, and how many partitions and versions it has."""

    location: str
    partitions: int
    seed: int = 0
    options: Options = field(default_factory=lambda: parse({}))
    operators: tuple[int, ...] = tuple(NAMES)
    format: int = 2
    packed: float = 0.5
    """How probable it is in format 2 that the commits of a batch are in packs."""
    rows: Logical = field(default_factory=dict)
    metas: dict[Identity, StoreMeta] = field(default_factory=dict)
    version: int = 0

    def __post_init__(self) -> None:
        """Write what Spark writes before the first batch."""
        self.random, self.packing = random.Random(self.seed), random.Random(f"packs {self.seed}")
        self.chains: dict[Identity, list[str]] = {}
        place = self.place
        place.put("metadata", json.dumps({"id": QUERY}).encode())
        for number, kind in enumerate(self.operators):
            names = [store for operator, store in STATES if operator == kind]
            described = describe_operator(number, NAMES[kind], names, self.partitions)
            place.put(f"state/{number}/_metadata/metadata", described)
            place.put(f"{store_folder(Identity(number, 0, names[0]))}/_metadata/schema", b"\0\2v3")
        if self.options.remote:
            folder = place_at(folder_of_query(self.options.remote, QUERY), self.options.s3)
            claim(folder, place, self.options.remote)
        for identity in self.identities():
            self.metas[identity] = EMPTY_META
            if self.options.remote:
                pointer = Pointer(folder_in(self.options.remote, QUERY, identity))
                place.put(f"{store_folder(identity)}/{POINTER_NAME}", msgspec.json.encode(pointer))

    @property
    def stores(self) -> list[tuple[int, str]]:
        """Kinds of operators and the names of their stores."""
        return [each for each in STATES if each[0] in self.operators]

    @property
    def place(self) -> BlobPlace:
        """The checkpoint."""
        return place_at(self.location, self.options.s3)

    def identities(self) -> Iterator[Identity]:
        """All stores."""
        for kind, store in self.stores:
            for partition in range(1 if kind == 1 else self.partitions):
                yield Identity(self.operators.index(kind), partition, store)

    def place_of(self, identity: Identity) -> BlobPlace:
        """Where a store is."""
        if self.options.remote:
            return place_at(folder_in(self.options.remote, QUERY, identity), self.options.s3)
        return place_at(f"{self.place.url}/{store_folder(identity)}", self.options.s3)

    def version_of(self, identity: Identity) -> StoreVersion:
        """The newest version of a store."""
        (located, *_), meta = self.chains[identity], self.metas[identity]
        return StoreVersion(identity, self.place_of(identity).url, meta, located=located)

    def plan(self) -> int:
        """Write what Spark does before a batch runs; its number."""
        batch = self.version
        conf = {"spark.sql.shuffle.partitions": str(self.partitions), "spark.sql.session.timeZone": "UTC"}
        entry = {"batchWatermarkMs": 1000 * batch, "batchTimestampMs": time.time_ns() // 1_000_000, "conf": conf}
        self.place.put(f"sources/0/{batch}", b'v1\n{"path":"file:///in/%d","batchId":%d}' % (batch, batch))
        self.place.put(f"offsets/{batch}", b'v1\n%s\n{"logOffset":%d}' % (json.dumps(entry).encode(), batch))
        return batch

    def run(self, batches: int = 1, rows: int = 12, *, snapshots: bool = False) -> None:
        """Run so many batches, each with a few rows that are new, changed or gone in every state."""
        for _ in range(batches):
            batch = self.plan()
            changes = self._changes(rows)
            ids: dict[str, dict[int, list[str]]] = {}
            self._write([self._commit(identity, changes) for identity in self.identities()])
            for identity in self.identities():
                if snapshots and self.random.random() < 0.7:
                    self.snapshot(identity)
                located = self.chains[identity][0]
                ids.setdefault(str(identity.operator), {}).setdefault(identity.partition, []).append(located)
            named = {operator: list(each.values()) for operator, each in ids.items()}
            entry = {"nextBatchWatermarkMs": 1000 * batch, **({"stateUniqueIds": named} if self.format > 1 else {})}
            self.place.put(f"commits/{batch}", b"v%d\n%s" % (self.format, json.dumps(entry).encode()))
            self.version += 1

    def purge(self, keep: int) -> None:
        """Delete the logs of all batches but so many, as Spark does."""
        for batch in range(self.version - keep):
            self.place.delete(f"offsets/{batch}")
            self.place.delete(f"commits/{batch}")

    def _changes(self, number: int) -> Changes:
        draw, changes = self.random, Changes()
        for operator, store in self.stores:
            for state in STATES[operator, store]:
                if (operator, store, state) == SPARKS_OWN:
                    continue
                known = self.rows.setdefault((operator, store, state), {})
                new: dict[bytes, bytes | None] = {}
                for _ in range(number if operator != 1 else 1):
                    key = b"" if operator == 1 else b"key-%d" % draw.randrange(number * 8)
                    new[key] = None if key in known and operator != 1 and draw.random() < 0.3 else draw.randbytes(9)
                changes[operator, store, state] = new
                merged = {**known, **new}
                self.rows[operator, store, state] = {key: each for key, each in merged.items() if each is not None}
        return changes

    def _commit(
        self, identity: Identity, changes: Mapping[tuple[int, str, str], dict[bytes, bytes | None]]
    ) -> tuple[Identity, DeltaName, bytes]:
        """One delta of one store; a state that has no row there yet may not be known there either."""
        operator, store, partition = self.operators[identity.operator], identity.name, identity.partition
        before = self.metas[identity]
        states = list(STATES[operator, store].items())
        if partition % 2:
            states.reverse()
        after, written, counts = before, dict[bytes, bytes | None](), dict[int, int]()
        for name, descriptor in states:
            mine = {
                key: value
                for key, value in changes.get((operator, store, name), {}).items()
                if partition_of(operator, hash_for(operator, key), self.partitions) == partition
            }
            is_sparks = (operator, store, name) == SPARKS_OWN
            if not mine and after.state(name) is None and not is_sparks:
                continue
            after, number = after.with_state(name, descriptor, keyed=operator == 2 and not is_sparks)
            if is_sparks:
                row = GroupTimesRow(1000 * self.version, 5000 + self.version, 9000 + partition).encode()
                written[encode_route_key(number, partition, self.partitions)] = row
                counts[number] = int(before.version == 0)
                continue
            written.update({stored_key(number, operator, key): value for key, value in mine.items()})
            known = before.state(name)
            if name != EXPIRY:
                counts[number] = self._count(operator, store, name, partition) - (known.rows if known else 0)
        commit_id = f"{self.random.getrandbits(128):032x}"
        after = after.commit(commit_id, counts, self.partitions)
        with Workplace(self.options).folder() as folder:
            rows = {MARKER_KEY: after.marker.encode(), **written}
            write_table_file(folder / "0.sst", sorted(rows.items()), TUNING)
            delta = DeltaName(after.marker, Marker(before.version, before.id if before.version else EMPTY_ID))
            content, chain = io.BytesIO(), self.chains.get(identity, [])
            is_packed = any(split_id(each)[1] for each in chain)
            pour_delta(content, after, [folder / "0.sst"], chain if is_packed else ())
        self.metas[identity] = after
        return identity, delta, content.getvalue()

    def _write(self, deltas: list[tuple[Identity, DeltaName, bytes]]) -> None:
        """Write the deltas of a batch, in one or two packs or as objects of their own."""
        version, slots = self.version + 1, dict[Identity, Slot]()
        if self.format > 1 and self.version and self.packing.random() < self.packed:
            half = self.packing.randrange(len(deltas))
            url = self.place.url if not self.options.remote else folder_of_query(self.options.remote, QUERY)
            for some in filter(None, (deltas[:half], deltas[half:])):
                packs, pack = place_at(f"{url}/{PACKS_FOLDER}", self.options.s3), f"{self.packing.getrandbits(64):016x}"
                for (identity, _, _), slot in zip(some, write_pack(packs, version, pack, some), strict=True):
                    slots[identity] = slot
        for identity, delta, content in deltas:
            if identity not in slots:
                put_delta(self.place_of(identity), delta, content)
            located = locate(delta.commit.id, slots.get(identity))
            self.chains.setdefault(identity, []).insert(0, located)

    def _count(self, operator: int, store: str, state: str, partition: int) -> int:
        keys = self.rows[operator, store, state]
        return sum(partition_of(operator, hash_for(operator, key), self.partitions) == partition for key in keys)

    def snapshot(self, identity: Identity) -> None:
        """Make a snapshot of the newest version of a store, as the state server does."""
        workplace, version = Workplace(self.options), self.version_of(identity)
        place, meta = workplace.store_place(version), version.meta
        with workplace.folder() as folder, workplace.restore(version, folder / "copy") as restored:
            restored.database.close()
            log = StoreLog(f"test.{identity.short}", identity.short)
            writer = SnapshotWriter(place, identity.partition, TUNING, FailPoints(""), log, full=False)
            lineage = read_lineage(place, meta.marker)
            assert writer.publish(LocalCopy(folder / "copy", meta), lineage, lambda: False) is not None


TUNING = Tuning(1 << 20)


def hash_for(operator: int, key: bytes) -> int:
    """The hash of a key; without keys there is one."""
    return 42 if operator == 1 else xxhash.xxh32_intdigest(key)


def stored_key(number: int, operator: int, key: bytes) -> bytes:
    """The key of a row as it is stored."""
    partition_hash = hash_for(operator, key)
    return (
        encode_ordered_key(number, key, partition_hash)
        if number & ORDERED_BIT
        else encode_hashed_key(number, partition_hash, key)
    )


def partition_of(operator: int, partition_hash: int, partitions: int) -> int:
    """Where a row belongs."""
    if operator == 1:
        return 0
    if operator == 2:
        return (partition_hash * MAX_PARALLELISM >> 32) * partitions // MAX_PARALLELISM
    return (partition_hash - (partition_hash >> 31 << 32)) % partitions


def stored(location: str, options: Options | None = None) -> tuple[int, int, Logical]:
    """Version, partitions and all rows of a checkpoint or savepoint; each row is where it belongs, counts are exact."""
    given = options or parse({})
    checkpoint = Checkpoint(location, given)
    version, found, workplace = checkpoint.newest_version, Logical(), Workplace(given)
    operators = list_operators(checkpoint, version)
    partitions = operators[0].operator.partitions
    for operator in operators:
        kind = KINDS[operator.operator.name]
        assert operator.operator.partitions == partitions
        for versions in operator.stores.values():
            assert len(versions) == (1 if kind == 1 else partitions)
            for each in versions:
                with workplace.folder() as folder, workplace.restore(each, folder / "old") as restored:
                    _check(each, kind, restored.database, partitions, found)
    return version, partitions, found


def _check(each: StoreVersion, operator: int, database: Database, partitions: int, found: Logical) -> None:
    """Add the rows of a store of a kind of operator to those that were found."""
    store, partition = each.identity.name, each.identity.partition
    rows = dict(database.rows())
    assert rows.pop(MARKER_KEY) == each.meta.marker.encode()
    assert each.meta.num_partitions == partitions
    for state in each.meta.states:
        first, end = state_range(state.number)
        mine = {key: rows.pop(key) for key in list(rows) if first <= key < end}
        assert state.rows == len(mine) * state.is_counted, f"{each.identity}: state {state.name}"
        if operator == 2 and state.number & ~ORDERED_BIT < FIRST_KEYED_COUNTER:
            assert list(mine) == [encode_route_key(state.number, partition, partitions)]
            continue
        into = found.setdefault((operator, store, state.name), {})
        for key, value in mine.items():
            partition_hash = read_hash(key)
            assert partition_of(operator, partition_hash, partitions) == partition
            is_ordered = bool(state.number & ORDERED_BIT)
            cut = slice(STATE_BYTES, -HASH_BYTES) if is_ordered else slice(STATE_BYTES + HASH_BYTES, None)
            assert partition_hash == hash_for(operator, key[cut])
            assert key[cut] not in into, "a row is in one place"
            into[key[cut]] = value
    assert not rows, "no row is of a state that is not known"


def written(
    location: Path | str,
    partitions: int = 3,
    *,
    seed: int = 0,
    batches: int = 3,
    operators: tuple[int, ...] = tuple(NAMES),
    checkpoint_format: int = 2,
    packed: float = 0.5,
    **options: str,
) -> Query:
    """A query of a few batches, with snapshots and later deltas, whose checkpoint is at ``location``."""
    query = Query(str(location), partitions, seed, parse(options), operators, checkpoint_format, packed)
    query.run(batches - 1, snapshots=True)
    query.run()
    return query


def files(folder: Path) -> dict[str, bytes]:
    """All of a folder, by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def find_step(name: str) -> str:
    """Where a step of a restore is called, to replace it: the full name."""
    module = next(each for each in (query_restore, restore_claim, claimed_savepoint) if hasattr(each, name))
    return f"{module.__name__}.{name}"
