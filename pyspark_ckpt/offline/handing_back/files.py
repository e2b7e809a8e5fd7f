"""The files of one store of Spark's own providers at one version: all of its rows, and nothing of earlier versions.

::

    <store>/<version>.snapshot        HDFS-backed provider: the rows, compressed with lz4
    <store>/<version>.zip, SSTs/      RocksDB provider: a database

``stores.py``, ``records.py`` and ``streams.py`` of ``adoption`` describe and read these formats. The lz4 stream has
blocks of at most 32 KiB, as Spark's have by default.
"""

from __future__ import annotations

import struct
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import xxhash

from pyspark_ckpt.offline.adopting.stores import METADATA, TABLES, Metadata, TableName
from pyspark_ckpt.offline.adopting.streams import LZ4_MAGIC, LZ4_SEED, LZ4_SUM_MASK
from pyspark_ckpt.state_store.blobs import BlobPlace
from pyspark_ckpt.state_store.blobs.transfers import send
from pyspark_ckpt.state_store.database.scratch import ScratchDatabase

Rows = Iterable[tuple[bytes, bytes]]

_SIZE = struct.Struct(">i")
_END = -1
_BLOCK_BYTES = 32 << 10
_LEVEL = 5
"""How lz4-java writes this size of blocks: the power of two beyond 1 KiB."""
_PLAIN, _COMPRESSED = 0x10 | _LEVEL, 0x20 | _LEVEL
_HEAD = struct.Struct("<BiiI")


class Family(NamedTuple):
    """A state in a store with several: its number in the keys, and whether Spark keeps it to find others."""

    number: int
    is_internal: bool


def write_snapshot(place: BlobPlace, version: int, rows: Rows, folder: Path) -> int:
    """Write a snapshot of the HDFS-backed provider. Return its bytes. ``folder``: for files meanwhile.

    Raises StorageError.
    """
    path = folder / "snapshot"
    codec = pa.Codec("lz4_raw")
    with path.open("wb") as file:
        for block in _blocks(_records(rows)):
            file.write(_frame(block, codec))
        file.write(_frame(b"", codec))
    name = f"{version}.snapshot"
    place.delete(name)  # an interrupted run has left the same
    return send(place, name, path).size_bytes


def write_database(
    place: BlobPlace,
    version: int,
    rows: Rows,
    families: dict[str, Family],
    folder: Path,
    count: Callable[[], tuple[int, int]],
) -> int:
    """Write a snapshot of the RocksDB provider. Return its bytes.

    ``count`` tells afterwards how many rows were of states that users see, and of internal ones. ``folder``, a new one,
    is for files meanwhile. Raises StorageError.
    """
    folder.mkdir(mode=0o700)
    with closing(ScratchDatabase(folder / "db")) as database:
        database.write(rows)
        names = database.seal()
    tables, size_bytes = [], 0
    for name in sorted(names):
        stored = f"{Path(name).stem}-{uuid.uuid4()}.sst"
        sent = send(place, f"{TABLES}/{stored}", folder / "db" / name)
        tables.append(TableName(name, stored, sent.size_bytes))
        size_bytes += sent.size_bytes
    keys, internal_keys = count()
    metadata = Metadata(tables, keys, numInternalKeys=internal_keys)
    if families:
        metadata.columnFamilyMapping = {name: family.number for name, family in families.items()}
        metadata.columnFamilyTypeMap = {name: family.is_internal for name, family in families.items()}
        metadata.maxColumnFamilyId = max(metadata.columnFamilyMapping.values())
    path = folder / "zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted((folder / "db").iterdir()):
            if file.name == "CURRENT" or file.name.startswith(("MANIFEST-", "OPTIONS-")):
                archive.write(file, file.name)
        archive.writestr(METADATA, b"v1\n" + msgspec.json.encode(metadata))
    content = path.read_bytes()
    place.put(f"{version}.zip", content)
    return size_bytes + len(content)


def _records(rows: Rows) -> Iterator[bytes]:
    for key, value in rows:
        yield _SIZE.pack(len(key)) + key + _SIZE.pack(len(value)) + value
    yield _SIZE.pack(_END)


def _blocks(parts: Iterable[bytes]) -> Iterator[bytes]:
    waiting = bytearray()
    for part in parts:
        waiting += part
        while len(waiting) >= _BLOCK_BYTES:
            yield bytes(waiting[:_BLOCK_BYTES])
            del waiting[:_BLOCK_BYTES]
    if waiting:
        yield bytes(waiting)


def _frame(block: bytes, codec: pa.Codec) -> bytes:
    stored, token = codec.compress(block, asbytes=True) if block else b"", _COMPRESSED
    if len(stored) >= len(block):
        stored, token = block, _PLAIN
    checksum = xxhash.xxh32_intdigest(block, LZ4_SEED) & LZ4_SUM_MASK if block else 0
    return LZ4_MAGIC + _HEAD.pack(token, len(stored), len(block), checksum) + stored
