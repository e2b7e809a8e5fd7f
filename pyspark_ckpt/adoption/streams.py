"""Bytes of Spark's state files, decompressed piece by piece.

Spark compresses each with the codec of ``spark.sql.streaming.stateStore.compression.codec``. Which one it was is told
by the first bytes::

    lz4      "LZ4Block", then token:u8 · stored:i32le · bytes:i32le · checksum:u32le · block     (lz4-java)
                      the checksum is 28 bits of xxh32 of the bytes, seed 9747b28c
    zstd     frames of the standard
    snappy   82 "SNAPPY" 00 · version:i32be · compatible:i32be, then size:i32be · block          (snappy-java)
    lzf      "ZV", then type:u8 · sizes:u16be · block                                            (ning/compress)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import xxhash

from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError

PIECE_BYTES = 1 << 20
MAX_BLOCK_BYTES = 256 << 20
LZ4_MAGIC = b"LZ4Block"
_LZ4_HEAD = struct.Struct("<BiiI")
_LZ4_METHOD = 0xF0
LZ4_SEED, LZ4_SUM_MASK = 0x9747B28C, 0xFFFFFFF
_LZ4_RAW, _LZ4_COMPRESSED = 0x10, 0x20
_ZSTD = b"\x28\xb5\x2f\xfd"
_SNAPPY = b"\x82SNAPPY\x00"
_SNAPPY_HEAD_BYTES = 16
_SIZE = struct.Struct(">i")
_LZF = b"ZV"


class ByteStream:
    """The decompressed bytes of one file, from the beginning to the end."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        """Read ``file``, which messages call ``where``. Raises FormatError, InvalidInputError (an unknown codec)."""
        self._where = where
        self._pieces = _decompress(file, where)
        self._held = b""
        self._at = 0

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes. Raises FormatError: there are not so many, or they are damaged."""
        if count < 0:
            raise FormatError(f"{self._where} is damaged: a record has {count} bytes.")
        end = self._at + count
        if end > len(self._held):
            self._hold(count)
            end = count
        found = self._held[self._at : end]
        self._at = end
        return found

    def peek(self, count: int) -> bytes:
        """Return up to ``count`` bytes that ``take`` returns next: fewer at the end. Raises FormatError."""
        with suppress(_EndError):
            self._hold(count)
        return self._held[self._at : self._at + count]

    def _hold(self, count: int) -> None:
        """Have ``count`` bytes at hand."""
        parts = [self._held[self._at :]]
        have = len(parts[0])
        self._held, self._at = parts[0], 0
        while have < count:
            piece = next(self._pieces, None)
            if piece is None:
                self._held = b"".join(parts)
                raise _EndError(f"{self._where} is damaged: it ends within a record.")
            parts.append(piece)
            have += len(piece)
        self._held = b"".join(parts)


class _EndError(FormatError):
    """The file has ended."""


@contextmanager
def open_stream(path: Path, where: str) -> Iterator[ByteStream]:
    """Open a file. Raises as ``ByteStream``."""
    with path.open("rb") as file:
        yield ByteStream(file, where)


def _decompress(file: BinaryIO, where: str) -> Iterator[bytes]:
    head = file.read(len(LZ4_MAGIC))
    file.seek(0)
    if head.startswith(LZ4_MAGIC):
        return _of_lz4(file, where)
    if head.startswith(_ZSTD):
        return _of_zstd(file, where)
    if head.startswith(_SNAPPY):
        return _of_snappy(file, where)
    if head.startswith(_LZF):
        raise InvalidInputError(
            f"{where} is compressed with lzf, which is not supported.",
            hint="Run the query with spark.sql.streaming.stateStore.compression.codec=lz4 until it has written a "
            "snapshot, and try again.",
        )
    raise FormatError(f"{where} is damaged: it begins with {head.hex()!r}, and not as a compressed file of Spark does.")


def _of_lz4(file: BinaryIO, where: str) -> Iterator[bytes]:
    codec = pa.Codec("lz4_raw")
    while magic := file.read(len(LZ4_MAGIC)):
        head = file.read(_LZ4_HEAD.size)
        if magic != LZ4_MAGIC or len(head) < _LZ4_HEAD.size:
            raise FormatError(f"{where} is damaged: a block has no head.")
        token, stored, size, checksum = _LZ4_HEAD.unpack(head)
        block = _read_block(file, stored, size, where)
        if token & _LZ4_METHOD == _LZ4_COMPRESSED:
            block = _inflate(codec, block, size, where)
        elif token & _LZ4_METHOD != _LZ4_RAW or stored != size:
            raise FormatError(f"{where} is damaged: a block has the token {token:#04x} and {stored} bytes.")
        if size and xxhash.xxh32_intdigest(block, LZ4_SEED) & LZ4_SUM_MASK != checksum:
            raise FormatError(f"{where} is damaged: the checksum of a block is wrong.")
        yield block


def _of_snappy(file: BinaryIO, where: str) -> Iterator[bytes]:
    codec = pa.Codec("snappy")
    file.seek(_SNAPPY_HEAD_BYTES)
    while head := file.read(_SIZE.size):
        if head == _SNAPPY[: _SIZE.size]:  # of a stream that was appended
            file.seek(_SNAPPY_HEAD_BYTES - _SIZE.size, 1)
            continue
        if len(head) < _SIZE.size:
            raise FormatError(f"{where} is damaged: a block has no head.")
        block = _read_block(file, _SIZE.unpack(head)[0], 0, where)
        size, shift = 0, 0
        for byte in block[:5]:
            size |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        if size > MAX_BLOCK_BYTES:
            raise FormatError(f"{where} is damaged: a block declares {size} bytes.")
        yield _inflate(codec, block, size, where)


def _of_zstd(file: BinaryIO, where: str) -> Iterator[bytes]:
    try:
        with pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd") as stream:
            while piece := stream.read(PIECE_BYTES):
                yield piece
    except (OSError, pa.ArrowException) as problem:
        raise FormatError(f"{where} is damaged: {problem}.") from problem


def _read_block(file: BinaryIO, stored: int, size: int, where: str) -> bytes:
    if not (0 <= stored <= MAX_BLOCK_BYTES and 0 <= size <= MAX_BLOCK_BYTES):
        raise FormatError(f"{where} is damaged: a block declares {max(stored, size)} bytes.")
    block = file.read(stored)
    if len(block) < stored:
        raise FormatError(f"{where} is damaged: it ends within a block.")
    return block


def _inflate(codec: pa.Codec, block: bytes, size: int, where: str) -> bytes:
    try:
        return bytes(codec.decompress(block, size, asbytes=True)) if size else b""
    except (OSError, pa.ArrowException) as problem:
        raise FormatError(f"{where} is damaged: a block cannot be decompressed: {problem}.") from problem
