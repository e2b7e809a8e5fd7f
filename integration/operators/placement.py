"""Where the rows of a finished query are stored, read with the engine alone, and where they belong."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark_ckpt.state_store.checkpoints.checkpoint import Checkpoint
from pyspark_ckpt.state_store.checkpoints.store_contents import restore_store
from pyspark_ckpt.state_store.format.keys import MARKER_KEY, ORDERED_BIT
from pyspark_ckpt.state_store.format.remote import store_folder
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.options import Options, parse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class StoredRow(NamedTuple):
    """One row of one state: the folder it is in, and the hash that its key carries."""

    store: str
    partition: int
    partition_hash: int
    key: bytes
    value: bytes


def stored_rows(location: Path | str, options: Options | None = None) -> Iterator[StoredRow]:
    """Every row of the newest committed version of every store of a checkpoint, wherever its state is."""
    checkpoint = Checkpoint(str(location), options or parse({}))
    for _, identity in checkpoint.stores():
        commit, log = checkpoint.find_commit(identity, checkpoint.newest_version), StoreLog(__name__, identity.short)
        with restore_store(checkpoint, identity, commit, log) as restored:
            for key, value in restored.database.rows():
                if key != MARKER_KEY:
                    folder = store_folder(identity).removeprefix("state/")
                    yield StoredRow(folder, identity.partition, _hash_in(key), key, value)


def partition_of(partition_hash: int, partitions: int) -> int:
    """Spark's ``pmod(hash, n)`` of the hash as a signed number."""
    signed = partition_hash - (1 << 32) if partition_hash >> 31 else partition_hash
    return signed % partitions


def _hash_in(key: bytes) -> int:
    ordered = int.from_bytes(key[:2], "big") & ORDERED_BIT
    return int.from_bytes(key[-4:] if ordered else key[2:6], "big")
