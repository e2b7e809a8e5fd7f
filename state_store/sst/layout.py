"""The common ground of the reader and the check of table files: their numbers, and how bytes encode them.

The state server imports neither numpy nor pyarrow, so this is plain Python.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from xxhash import xxh3_64_intdigest

FOOTER_BYTES = 53
FOOTER_END = struct.Struct("<IQ")
"""The end of a footer: its format, and MAGIC."""
MAGIC = 0x88E241B785F4CFF7
XXH3 = 4
"""The kind of checksum of blocks."""
LAST_BYTE = 0x6B9083D9
"""A checksum covers the byte for the kind of compression by its product with this number."""
TRAILER = struct.Struct("<BI")
"""The trailer of a block: its kind of compression, and its checksum."""
TRAILER_BYTES = TRAILER.size
PLAIN, LZ4, LZ4HC, ZSTD = 0, 4, 5, 7
"""Kinds of compression."""
MAX_BLOCK_BYTES = 1 << 31
SUFFIX_BYTES = 8
"""The last bytes of a key in a table: its sequence number and kind."""
MORE = 0x80
"""This bit of a byte of a number means that another byte follows."""

BlockHandle = tuple[int, int]
"""Where a block begins in the file, and its size without the trailer."""


@lru_cache(1 << 10)
def encode_number(number: int) -> bytes:
    """Return a number as bytes of seven bits each, in the only form in which RocksDB writes it."""
    digits = bytearray()
    while number >= MORE:
        digits.append(number & 0x7F | MORE)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def read_number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, and where it ends. Raises IndexError."""
    byte = data[at]
    at += 1
    if byte < MORE:
        return byte, at
    number, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < MORE:
            return number, at
        shift += 7


def read_handle(data: bytes, at: int) -> tuple[BlockHandle, int]:
    """Return a handle, which is two numbers, and where it ends. Raises IndexError."""
    begin, at = read_number(data, at)
    size, at = read_number(data, at)
    return (begin, size), at


def compute_checksum(block: bytes | memoryview, kind: int) -> int:
    """Return the checksum of a block and of its ``kind`` of compression."""
    return (xxh3_64_intdigest(block) ^ kind * LAST_BYTE) & 0xFFFFFFFF
