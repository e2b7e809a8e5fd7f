"""Copy files to places and back, and objects between places. Every byte is verified by a checksum."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec
import xxhash

from pyspark_ckpt.state_store.blobs.base.capabilities import CanCopy, CanLink, CanWriteTogether
from pyspark_ckpt.state_store.blobs.base.place import BlobPlace
from pyspark_ckpt.state_store.chunks import hash_file, pour, read_chunks
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.json_objects import Count, ObjectName, Xxh3

PIECE_BYTES = 8 << 20


class StoredFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object that holds a file: its name in its place, its size, and the xxh3 (128 bits) of its bytes."""

    name: ObjectName
    size_bytes: Count
    xxh3: Xxh3


def send(place: BlobPlace, name: str, path: Path) -> StoredFile:
    """Move a local file to the new object ``name``. Raises StorageError, ConflictError (the object exists)."""
    xxh3 = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as source, place.create(name) as sink:
        size = pour(read_chunks(source), xxh3.update, sink.write)
    path.unlink()
    return StoredFile(name, size, xxh3.hexdigest())


def fetch(place: BlobPlace, file: StoredFile, path: Path) -> Path:
    """Download an object to ``path``. Raises NotFoundError, StorageError, FormatError (the object is damaged)."""
    place.download(file.name, path)
    if describe(file.name, path) != file:
        raise FormatError(f"{place.url}/{file.name} is damaged: size or checksum is wrong.")
    return path


def copy_object(source: BlobPlace, file: StoredFile, target: BlobPlace, new_name: str) -> None:
    """Copy ``file`` of ``source`` to the object ``new_name`` of ``target``, whole and durable on return.

    If both places are of one service, the service copies and uses its own checksums. Otherwise the bytes pass through
    this process, which compares the checksum before the object appears. Raises NotFoundError, ConflictError
    (``new_name`` exists), FormatError (another size or checksum; then no object appears), StorageError.
    """
    name, size_bytes = file.name, file.size_bytes
    if isinstance(target, CanCopy) and target.copy_from(source, name, size_bytes, new_name):
        return
    xxh3 = xxhash.xxh3_128()
    with target.create(new_name) as sink:
        pour(_pieces(source, name, size_bytes), xxh3.update, sink.write)
        if xxh3.hexdigest() != file.xxh3:
            raise FormatError(f"{source.url}/{name} is damaged: its checksum is wrong.")


def is_copied_by_service(source: BlobPlace, target: BlobPlace) -> bool:
    """Return whether the service of both places may copy objects itself, so that none passes through this process."""
    return isinstance(target, CanCopy) and target.copies_from(source)


def share_object(source: BlobPlace, file: StoredFile, target: BlobPlace, new_name: str) -> None:
    """Do as ``copy_object``, within one checkpoint. On a file system, both names then belong to one file.

    Objects never change, and the file exists as long as one of its names does.
    """
    if not link_object(source, file.name, target, new_name):
        copy_object(source, file, target, new_name)


def link_object(source: BlobPlace, name: str, target: BlobPlace, new_name: str) -> bool:
    """Make ``new_name`` another name of an object's file, if the places can. Return whether it now is.

    Raises NotFoundError, ConflictError (``new_name`` exists), StorageError.
    """
    return isinstance(target, CanLink) and target.link_from(source, name, new_name)


@contextmanager
def write_together(place: BlobPlace) -> Iterator[BlobPlace]:
    """Yield the place for many new objects. All are durable when the block ends, which is faster on a disk.

    Raises StorageError at the end.
    """
    with place.together() if isinstance(place, CanWriteTogether) else nullcontext(place) as other:
        yield other


def describe(name: str, path: Path) -> StoredFile:
    """Return the description of a local file as the object ``name``."""
    xxh3 = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as source:
        size_bytes = hash_file(source, xxh3.update)
    return StoredFile(name, size_bytes, xxh3.hexdigest())


def is_intact(place: BlobPlace, file: StoredFile) -> bool:
    """Return whether an object has the right bytes. Raises NotFoundError, FormatError (it is shorter), StorageError."""
    xxh3 = xxhash.xxh3_128()
    pour(_pieces(place, file.name, file.size_bytes), xxh3.update)
    return xxh3.hexdigest() == file.xxh3


def _pieces(place: BlobPlace, name: str, size_bytes: int) -> Iterator[bytes]:
    for begin in range(0, size_bytes, PIECE_BYTES):
        end = min(begin + PIECE_BYTES, size_bytes)
        piece = place.get(name, begin, end)
        if len(piece) != end - begin:
            raise FormatError(f"{place.url}/{name} is damaged: it ends before {size_bytes} bytes.")
        yield piece
