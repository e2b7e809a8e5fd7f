"""Bytes in chunks and rows in portions, for content that may not fit into memory."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import IO, Any, Final, TypeAlias, TypeVar

T = TypeVar("T")

CHUNK_BYTES: Final = 1 << 20
_HASHED_BYTES: Final = 1 << 17

Taker: TypeAlias = Callable[[bytes], Any]


def read_chunks(source: IO[bytes]) -> Iterator[bytes]:
    """Yield the rest of an open file, up to CHUNK_BYTES at a time. Raises what its ``read`` raises."""
    while chunk := source.read(CHUNK_BYTES):
        yield chunk


def take_portion(items: Iterator[T], most: int, most_bytes: int, count_bytes: Callable[[T], int]) -> list[T]:
    """Take the next items: ``most``, or about ``most_bytes`` of them; none at the end."""
    taken, size_bytes = [], 0
    for each in islice(items, most):
        taken.append(each)
        size_bytes += count_bytes(each)
        if size_bytes >= most_bytes:
            break
    return taken


def count_row_bytes(row: tuple[bytes, bytes | None]) -> int:
    """Return the bytes of a key and its value."""
    key, value = row
    return len(key) + len(value or b"")


def pour(chunks: Iterable[bytes], *takers: Taker) -> int:
    """Hand each chunk to all ``takers``, in their order: a file's ``write``, a checksum's ``update``.

    Each of them must take a chunk as a whole. Returns the number of bytes.
    """
    size_bytes = 0
    for chunk in chunks:
        for take in takers:
            take(chunk)
        size_bytes += len(chunk)
    return size_bytes


def hash_file(source: io.FileIO, update: Callable[[memoryview], Any]) -> int:
    """Hand the rest of an open file to the ``update`` of a checksum, which must not keep it. Returns the byte count."""
    buffer = memoryview(bytearray(_HASHED_BYTES))
    size_bytes = 0
    while count := source.readinto(buffer):
        update(buffer[:count])
        size_bytes += count
    return size_bytes
