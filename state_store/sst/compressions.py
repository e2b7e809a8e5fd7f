"""Compressions of blocks that this store never writes, but that Spark's RocksDB may be told to write.

::

    snappy    snappy's own form, which begins with the length
    zlib      length:varint · deflate without a head
    bzip2     length:varint · a stream of bzip2
"""

from __future__ import annotations

import zlib

import pyarrow as pa

SNAPPY, ZLIB, BZIP2 = 1, 2, 3
OTHER_COMPRESSIONS = (SNAPPY, ZLIB, BZIP2)
"""Kinds of compression, beside those of ``layout``."""
_SNAPPY_CODEC = pa.Codec("snappy")
_WITHOUT_HEAD = -15


def decompress_other(kind: int, block: memoryview, begin: int, length: int) -> bytes:
    """Return the content of a block that declares ``length`` bytes. Raises ValueError, OSError.

    ``begin``: where the bytes after that length begin.
    """
    content: bytes
    if kind == SNAPPY:
        content = _SNAPPY_CODEC.decompress(block, length, asbytes=True)
    elif kind == ZLIB:
        content = _inflate(block[begin:], length)
    else:
        with pa.CompressedInputStream(pa.BufferReader(block[begin:]), "bz2") as stream:
            content = stream.read(length + 1)
    if len(content) != length:
        raise ValueError(f"it should have {length} bytes, but has {len(content)}")
    return content


def _inflate(stored: memoryview, length: int) -> bytes:
    """Return up to one byte more than expected."""
    stream = zlib.decompressobj(_WITHOUT_HEAD)
    try:
        content = stream.decompress(stored, length + 1)
    except zlib.error as problem:
        raise ValueError(f"deflate: {problem}") from problem
    if not stream.eof:
        raise ValueError("its stream does not end")
    return content
