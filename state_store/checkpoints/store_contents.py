"""The stored content of one store of a checkpoint: its objects, the input of a restore, and its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.format.keys import MARKER_KEY, Marker, read_hash
from pyspark_ckpt.state_store.format.lineage import Lineage
from pyspark_ckpt.state_store.format.names import TABLE_FOLDER
from pyspark_ckpt.state_store.identity import Identity
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.restore.store_restorer import RestoredStore


@dataclass(frozen=True)
class StoredObjects:
    """The stored objects of one store, counted by their names. ``lag``: versions since the newest snapshot."""

    identity: Identity
    place: str
    first_version: int
    last_version: int
    deltas: int
    delta_bytes: int
    snapshots: int
    lag: int
    table_files: int
    table_bytes: int


def count_objects(checkpoint: Checkpoint, identity: Identity) -> StoredObjects:
    """Count the objects of a store with two listings; nothing is opened. Raises StorageError."""
    place = checkpoint.find_place(identity)
    lineage = Lineage.read(place)
    versions = sorted({marker.version for marker in (*lineage.deltas, *lineage.snapshots)})
    tables = place.list(TABLE_FOLDER)
    last = versions[-1] if versions else 0
    newest_snapshot = max((marker.version for marker in lineage.snapshots), default=0)
    return StoredObjects(
        identity,
        place.url,
        versions[0] if versions else 0,
        last,
        len(lineage.deltas),
        sum(blob.size_bytes for _, blob in lineage.deltas.values()),
        len(lineage.snapshots),
        last - newest_snapshot,
        len(tables),
        sum(blob.size_bytes for blob in tables),
    )


def list_restore_steps(checkpoint: Checkpoint, identity: Identity, version: int) -> tuple[Marker, list[Marker]]:
    """Return the input of a restore of a version: the base, and the commits whose deltas follow it, in order.

    Only names of objects are read. Raises NotFoundError, StorageError.
    """
    lineage = Lineage.read(checkpoint.find_place(identity))
    commit = checkpoint.find_commit(identity, version, lineage)
    base, deltas = lineage.chain(commit, lambda marker: marker in lineage.snapshots)
    return base, [delta.commit for delta in deltas]


def count_rows_by_hash(checkpoint: Checkpoint, identity: Identity, version: int, parts: int) -> Counter[int]:
    """Restore a version and count its rows in each of ``parts`` equal ranges of hashes, numbered from 0.

    Raises NotFoundError, FormatError, StorageError.
    """
    log = StoreLog(f"inspect.{identity.short}", identity.short)
    with restore_store(checkpoint, identity, checkpoint.find_commit(identity, version), log) as restored:
        return Counter(read_hash(key) * parts >> 32 for key, _ in restored.database.rows() if key != MARKER_KEY)


@contextmanager
def restore_store(checkpoint: Checkpoint, identity: Identity, commit: Marker, log: StoreLog) -> Iterator[RestoredStore]:
    """Restore a commit into a temporary folder and yield the open database. Raises as ``Workplace.restore``."""
    place = checkpoint.find_place(identity)
    with (
        checkpoint.workplace.folder() as folder,
        checkpoint.workplace.restore_from(place, identity, commit, folder / "copy", log) as restored,
    ):
        yield restored
