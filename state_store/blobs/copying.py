"""Copy an object from one place to another: by the service itself where both are of one, else through this process."""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

from pyspark_ckpt.state_store.blobs.place import BlobPlace
from pyspark_ckpt.state_store.errors import FormatError

PIECE_BYTES = 8 << 20


def copy_object(source: BlobPlace, name: str, size_bytes: int, target: BlobPlace, new_name: str) -> str | None:
    """Make the object ``new_name`` of ``target`` what ``name`` of ``source`` is; whole and durable after return.

    Returns the xxh3 (128 bits) of its bytes, None if the service has copied them, which has checksums of its own.
    Raises NotFoundError, ConflictError (there is one of the new name), FormatError (it has another size), StorageError.
    """
    by_service = getattr(target, "copy_from", None)
    if by_service is not None and type(source) is type(target) and by_service(source, name, size_bytes, new_name):
        return None
    xxh3 = xxhash.xxh3_128()
    with target.create(new_name) as sink:
        for piece in _pieces(source, name, size_bytes):
            xxh3.update(piece)
            sink.write(piece)
    return xxh3.hexdigest()


def checksum_of(place: BlobPlace, name: str, size_bytes: int) -> str:
    """The xxh3 (128 bits) of so many bytes of an object. Raises NotFoundError, FormatError (shorter), StorageError."""
    xxh3 = xxhash.xxh3_128()
    for piece in _pieces(place, name, size_bytes):
        xxh3.update(piece)
    return xxh3.hexdigest()


def _pieces(place: BlobPlace, name: str, size_bytes: int) -> Iterator[bytes]:
    for begin in range(0, size_bytes, PIECE_BYTES):
        end = min(begin + PIECE_BYTES, size_bytes)
        piece = place.get(name, begin, end)
        if len(piece) != end - begin:
            raise FormatError(f"{place.url}/{name} is damaged: it ends before {size_bytes} bytes.")
        yield piece
