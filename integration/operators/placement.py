"""Where the rows of a finished query are stored, read with the engine alone, and where they belong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from pyspark_ckpt.state_store.blobs import place_at
from pyspark_ckpt.state_store.database import Tuning
from pyspark_ckpt.state_store.failpoints import FailPoints
from pyspark_ckpt.state_store.keys import MARKER_KEY, ORDERED_BIT, Marker
from pyspark_ckpt.state_store.log import StoreLog
from pyspark_ckpt.state_store.restore import Restorer
from pyspark_ckpt.state_store.restore_forecast import RestoreForecast
from pyspark_ckpt.state_store.winners import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TUNING = Tuning(cache_bytes=1 << 20)


class StoredRow(NamedTuple):
    """One row of one state: the folder it is in, and the hash that its key carries."""

    store: str
    partition: int
    partition_hash: int
    key: bytes
    value: bytes


def stored_rows(checkpoint: Path, scratch: Path) -> Iterator[StoredRow]:
    """Every row of the newest committed version of every store below ``checkpoint``; ``scratch`` is a new folder."""
    version = 1 + max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    for number, folder in enumerate(_stores(checkpoint / "state")):
        path = folder.relative_to(checkpoint / "state")
        operator, partition = map(int, path.parts[:2])
        committed = resolve(place_at(str(folder)), place_at(str(checkpoint)), version, operator, partition, str(path))
        for key, value in _rows(folder, scratch / str(number), committed):
            yield StoredRow(str(path), partition, _hash_in(key), key, value)


def partition_of(partition_hash: int, partitions: int) -> int:
    """Spark's ``pmod(hash, n)`` of the hash as a signed number."""
    signed = partition_hash - (1 << 32) if partition_hash >> 31 else partition_hash
    return signed % partitions


def _stores(state: Path) -> list[Path]:
    return sorted({delta.parent for delta in state.rglob("*.delta")})


def _rows(folder: Path, scratch: Path, version: Marker) -> Iterator[tuple[bytes, bytes]]:
    scratch.mkdir(parents=True)
    place = place_at(str(folder))
    log = StoreLog(__name__, str(folder))
    with ThreadPoolExecutor(2) as pool:
        restorer = Restorer(place, _TUNING, pool, FailPoints(""), RestoreForecast(), log, str(folder))
        database = restorer.restore(version, scratch, set(), lambda _commit, _folder: None).database
    try:
        yield from ((key, value) for key, value in database.rows() if key != MARKER_KEY)
    finally:
        database.close()


def _hash_in(key: bytes) -> int:
    ordered = int.from_bytes(key[:2], "big") & ORDERED_BIT
    return int.from_bytes(key[-4:] if ordered else key[2:6], "big")
