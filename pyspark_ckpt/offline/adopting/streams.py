"""Bytes of Spark's state files, decompressed piece by piece.

Spark compresses each with the codec of ``spark.sql.streaming.stateStore.compression.codec``. Which one it was is told
by the first bytes::

    lz4      "LZ4Block", then token:u8 · stored:i32le · bytes:i32le · checksum:u32le · block     (lz4-java)
                      the checksum is 28 bits of xxh32 of the bytes, seed 9747b28c
    zstd     frames of the standard
    snappy   82 "SNAPPY" 00 · version:i32be · compatible:i32be, then size:i32be · block          (snappy-java)
    lzf      blocks: "ZV" 00 · bytes:u16be · block as it is, or
             "ZV" 01 · stored:u16be · bytes:u16be · block                                         (ning/compress)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import xxhash

from pyspark_ckpt.state_store.errors import FormatError

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
_LZF_HEAD = struct.Struct(">2sBH")
_LZF_RAW, _LZF_COMPRESSED = 0, 1
_LZF_LITERALS, _LZF_LONG = 32, 7
"""Control bytes below this one count literal bytes; a copy of this length has more of it in the next byte."""


class ByteStream:
    """The decompressed bytes of one file, from the beginning to the end."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        """Read ``file``, which messages call ``where``. Raises FormatError."""
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
        return _of_lzf(file, where)
    raise FormatError(f"{where} is damaged: it begins with {head.hex()!r}, unlike a compressed file of Spark.")


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


def _of_lzf(file: BinaryIO, where: str) -> Iterator[bytes]:
    while head := file.read(_LZF_HEAD.size):
        if len(head) < _LZF_HEAD.size or not head.startswith(_LZF):
            raise FormatError(f"{where} is damaged: a block has no head.")
        _, kind, size = _LZF_HEAD.unpack(head)
        if kind not in (_LZF_RAW, _LZF_COMPRESSED):
            raise FormatError(f"{where} is damaged: a block is of the kind {kind}.")
        length = int.from_bytes(_read_block(file, 2, 0, where), "big") if kind == _LZF_COMPRESSED else size
        block = _read_block(file, size, 0, where)
        yield block if kind == _LZF_RAW else _inflate_lzf(block, length, where)


def _inflate_lzf(block: bytes, size: int, where: str) -> bytes:
    """Decompress a block: literal bytes after a byte that counts them, and copies of what came before."""
    found = bytearray()
    at = 0
    try:
        while at < len(block):
            control = block[at]
            at += 1
            if control < _LZF_LITERALS:
                found += block[at : at + control + 1]
                at += control + 1
                continue
            length = control >> 5
            if length == _LZF_LONG:
                length += block[at]
                at += 1
            begin = len(found) - ((control & 0x1F) << 8) - block[at] - 1
            at += 1
            length += 2
            if begin < 0:
                raise FormatError(f"{where} is damaged: a block refers to bytes before it.")
            if begin + length <= len(found):
                found += found[begin : begin + length]
            else:  # it copies bytes that it writes itself
                pattern = found[begin:]
                found += (pattern * (length // len(pattern) + 1))[:length]
    except IndexError as problem:
        raise FormatError(f"{where} is damaged: a block ends within a copy.") from problem
    if len(found) != size or at != len(block):
        raise FormatError(f"{where} is damaged: a block has {len(found)} bytes instead of {size}.")
    return bytes(found)


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
