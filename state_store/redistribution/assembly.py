"""Make the database of a new store, prove its content, and publish it as the snapshot of its first version."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.blobs.transfers import StoredFile, fetch
from pyspark_ckpt.state_store.checkpoints.digests import Digest
from pyspark_ckpt.state_store.checkpoints.state_rows import Row, digest_states
from pyspark_ckpt.state_store.checkpoints.workplace import Workplace
from pyspark_ckpt.state_store.database import LEVEL0_COMPACTION_FILES, Database, Tuning, write_table_file
from pyspark_ckpt.state_store.errors import InternalError
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.format.keys import MARKER_KEY, Marker
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.manifest import decode
from pyspark_ckpt.state_store.format.meta import StateMeta, StoreMeta, is_keyed
from pyspark_ckpt.state_store.format.names import snapshot_name
from pyspark_ckpt.state_store.format.partition_states import Scope, find_scope
from pyspark_ckpt.state_store.format.spark_groups import encode_route_key, join_times
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.json_objects import Count, Name
from pyspark_ckpt.state_store.local.copies import LocalCopy
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.redistribution.merged_states import Merged
from pyspark_ckpt.state_store.snapshots.writer import NOWHERE, Origin, SnapshotWriter
from pyspark_ckpt.state_store.sst.scan import Sums

AT_ONCE = 2
"""How many new stores a task makes at once: while one waits for the disk, rows of the other are read."""
_READING = threading.Lock()
"""Held while the rows of a new store are read. A reader releases the interpreter's lock for every block, so two readers
at once take longer than one after the other."""
MIN_COMPACTED = 5
"""From this number on, runs are merged here: each is one more file for every look-up. RocksDB itself merges fewer."""


class Assembled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new store: digests of its states, and how much of it was rewritten and copied."""

    digests: dict[Name, Digest]
    rewritten_bytes: Count
    copied_bytes: Count


@dataclass(frozen=True)
class NewStore:
    """A store that is being made: its identity, the URL of its folder, its states, and the id of its first commit."""

    identity: Identity
    url: str
    merged: Merged
    version: int
    commit_id: str
    partitions: int

    @property
    def key(self) -> str:
        """The name of the task that makes it, unique in its redistribution."""
        return f"make-{self.identity.key}"

    def meta(self, digests: Mapping[str, Digest]) -> StoreMeta:
        """Return the metadata of the store with these rows."""
        rows = {name: each.rows for name, each in digests.items()}
        meta = self.merged.meta(self.version, self.commit_id, self.partitions, rows)
        copies = {name: each.sum for name, each in digests.items() if each.sum is not None}
        states = [
            msgspec.structs.replace(state, digest=copies[state.name])
            if find_scope(state) is Scope.BROADCAST and state.name in copies
            else state
            for state in meta.states
        ]
        return msgspec.structs.replace(meta, states=tuple(states))

    def marker_file(self, folder: Path, tuning: Tuning) -> Path:
        """Write a table file into ``folder`` that marks a database as this store's. Ingest it with the rows."""
        path = folder / "marker.sst"
        write_table_file(path, [(MARKER_KEY, Marker(self.version, self.commit_id).encode())], tuning)
        return path

    def make_spark_row(self, state: StateMeta, values: Sequence[bytes]) -> Row:
        """Return Spark's row of the partition, in its own ``state``, from the old ``values``. Raises FormatError."""
        key = encode_route_key(state.number, self.identity.partition, self.partitions)
        return key, join_times(values, f"{self.identity}, state {state.name!r}")


@dataclass(frozen=True)
class JoinTask:
    """Joins the runs of one new partition. ``spark_rows``: see ``Split``; they become one row.

    ``placed``: files with the states of the partition, which belong to no key.
    """

    workplace: Workplace
    new: NewStore
    target: str
    runs: tuple[tuple[StoredFile, ...], ...]
    spark_rows: tuple[bytes, ...] = ()
    placed: tuple[StoredFile, ...] = ()

    @property
    def key(self) -> str:
        """See NewStore."""
        return self.new.key

    def __call__(self) -> Assembled:
        """Publish the new store. Raises StorageError, FormatError, NotFoundError."""
        with self.workplace.folder() as folder:
            place = self.workplace.place(self.target)
            files = [file for run in self.runs for file in run]
            paths = [fetch(place, file, folder / f"{number}.sst") for number, file in enumerate(files)]
            spark = [self._row_of_spark(folder / "spark.sst")] if self.spark_rows else []
            placed = [fetch(place, file, folder / f"placed-{number}.sst") for number, file in enumerate(self.placed)]
            are_merged = len(self.runs) >= MIN_COMPACTED
            return assemble(self.workplace, self.new, (paths, spark, placed), folder, are_merged=are_merged)

    def _row_of_spark(self, path: Path) -> Path:
        """Write the row that Spark keeps for this partition of a keyed operator."""
        (state,) = (state for state in self.new.merged.states if not is_keyed(state))
        write_table_file(path, [self.new.make_spark_row(state, self.spark_rows)], self.workplace.tuning())
        return path


def assemble(
    workplace: Workplace, new: NewStore, files: Sequence[Sequence[Path]], folder: Path, *, are_merged: bool = False
) -> Assembled:
    """Publish a new store with the rows of ``files``, which are moved into its database. Raises as ``publish``."""
    (folder / "copy").mkdir(parents=True, mode=0o700)
    marker = new.marker_file(folder, workplace.tuning())
    with closing(Database(folder / "copy" / "db", workplace.tuning())) as database:
        first, *rest = files
        database.ingest([marker, *first])
        for some in filter(None, rest):
            database.ingest(some)
        level0_files = sum(table.level == 0 for table in database.table_files())
        if are_merged or level0_files >= LEVEL0_COMPACTION_FILES:  # RocksDB does not compact by itself here
            database.compact()
        return publish(workplace, new, database, folder)


def publish(
    workplace: Workplace,
    new: NewStore,
    database: Database,
    folder: Path,
    origins: dict[str, Origin] | None = None,
    known: Sums | None = None,
) -> Assembled:
    """Publish the content of ``database``, in ``folder/copy/db``, as the first version of a new store; close it.

    The marker must already be among the rows: ingesting it as a separate file takes several writes that wait for the
    disk.

    Table files in ``origins`` are copied from there. The next store then copies them from this one. ``known`` may hold
    sums of their rows: see ``sum_range``.

    A snapshot that another attempt has published stays, and nothing that it may rely on is deleted. Objects left by a
    killed attempt are in no manifest; the clean-up of the query deletes them. Raises StorageError, InternalError.
    """
    identity = new.identity
    with _READING:
        digests = digest_states(database, new.merged.states, known)
    meta = new.meta(digests)
    if database.marker() != meta.marker:
        raise InternalError(f"{identity}: the database must hold {meta.marker}, but its marker is {database.marker()}.")
    database.close()
    place, log = workplace.place(new.url), StoreLog(f"offline.{identity.short}", identity.short)
    writer = SnapshotWriter(place, identity.partition, workplace.tuning(), FailPoints(""), log, full=False)
    copy = LocalCopy(folder / "copy", meta)
    published = writer.publish(copy, Lineage.read(place), lambda: False, origins or NOWHERE)
    if published is None:
        return Assembled(digests, _standing_bytes(place, meta), 0)
    if origins is not None:
        origins.update({file.name: Origin(place, file, True) for file in published.files if file.name in origins})
    return Assembled(digests, published.uploaded_bytes, published.copied_bytes)


def _standing_bytes(place: BlobPlace, meta: StoreMeta) -> int:
    """Return the bytes of the snapshot of the same rows that another attempt has published."""
    name = snapshot_name(meta.marker)
    manifest = decode(place.get(name), f"{place.url}/{name}")
    if manifest.store != meta:
        raise InternalError(f"{place.url}/{name} was made from other rows than those of this store.")
    return sum(file.size_bytes for file in manifest.objects().values())


def run_files(runs: Sequence[Mapping[int, Sequence[StoredFile]]], partition: int) -> tuple[tuple[StoredFile, ...], ...]:
    """Return the runs of one new partition, from all old ones that have any."""
    return tuple(tuple(each[partition]) for each in runs if each.get(partition))
