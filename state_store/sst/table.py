"""A table file of RocksDB: which blocks it has, and what is in them before compression.

A block-based table (https://github.com/facebook/rocksdb/wiki/Rocksdb-BlockBasedTable-Format), of the kind that this
store writes: data blocks, each ended by one byte for its compression and a checksum; an index of one entry a block;
properties; a footer. What the blocks say is read by ``blocks``.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from pyspark_ckpt.state_store.columns.packed import Bytes, Integers, Packed
from pyspark_ckpt.state_store.errors import FormatError, StorageError
from pyspark_ckpt.state_store.sst.blocks import MORE, SUFFIX_BYTES, find, varints

FOOTER_BYTES = 53
MAGIC = 0x88E241B785F4CFF7
FORMATS = range(3, 6)
XXH3 = 4
"""The checksum of blocks."""
TRAILER = struct.Struct("<BI")
"""Behind a block: how it is compressed, and its checksum."""
TRAILER_BYTES = TRAILER.size
PLAIN, LZ4, LZ4HC, ZSTD = 0, 4, 5, 7
"""Kinds of compression."""
_CODECS = {LZ4: "lz4_raw", LZ4HC: "lz4_raw", ZSTD: "zstd"}
MAX_BLOCK_BYTES = 1 << 31
PORTION_BYTES = 2 << 20
"""So much of each table is about what is read at once, if it has no large values that were compressed much."""
BLOCK_BYTES = 4 << 10
_LAST_BYTE = 0x6B9083D9
_U32 = struct.Struct("<I")
_MAX_DIGITS = 8

Handle = tuple[int, int]
"""Where a block begins in the file, and its bytes without those at its end."""


@dataclass(frozen=True)
class Hidden:
    """Rows from key ``begin`` up to ``end`` that are hidden if they are older than ``sequence``."""

    begin: bytes
    end: bytes
    sequence: int


@dataclass(frozen=True, eq=False)
class Blocks:
    """The data blocks of a table: a key not less than any in there and less than all of the next, place and size."""

    keys: Packed
    at: Integers
    size: Integers

    def __len__(self) -> int:
        """How many there are."""
        return len(self.keys)

    def within(self, begin: bytes, end: bytes) -> tuple[int, int]:
        """The first that may have keys from ``begin`` up to ``end``, and the one behind the last."""
        if begin >= end:
            return 0, 0
        first = bisect_left(self.keys, begin)
        behind = bisect_left(self.keys, end, lo=first)
        if behind == len(self) or (behind > first and self.keys[behind - 1] + b"\0" == end):
            return first, behind
        return first, behind + 1  # the first block with a key of ``end`` or more may begin with smaller ones


@dataclass(frozen=True, eq=False)
class Span:
    """Data blocks of a table that lie one behind the other: from number ``first`` to that before ``behind``."""

    table: SortedTable
    first: int
    behind: int

    def __len__(self) -> int:
        """How many there are."""
        return self.behind - self.first

    @property
    def at(self) -> Integers:
        """Where each begins in the file."""
        return self.table.blocks.at[self.first : self.behind]

    @property
    def size(self) -> Integers:
        """Bytes of each in the file."""
        return self.table.blocks.size[self.first : self.behind]

    @property
    def stored_bytes(self) -> int:
        """About the bytes of all; of large ones, compressed."""
        return int(np.maximum(self.size, BLOCK_BYTES).sum())

    @property
    def middle(self) -> bytes:
        """A key that halves them; none if there are not two."""
        return self.table.blocks.keys[(self.first + self.behind) // 2 - 1] + b"\0" if len(self) > 1 else b""

    def read(self) -> Content:
        """Have them here; there must be one. Raises FormatError, StorageError."""
        at, size = self.at, self.size
        if (at[1:] < at[:-1] + size[:-1] + TRAILER_BYTES).any():
            raise self.table.make_damage_error("its index says that blocks overlap")
        data = self.table.bytes_at(int(at[0]), int(at[-1] + size[-1] + TRAILER_BYTES - at[0]))
        return Content(self.table, data, at - at[0], size)


@dataclass(frozen=True, eq=False)
class Content:
    """Data blocks as they are stored: where each begins in ``data``, and its bytes there."""

    table: SortedTable
    data: bytes
    at: Integers
    size: Integers

    @cached_property
    def _ends(self) -> Integers:
        return self.at + self.size

    @cached_property
    def _kinds(self) -> Bytes:
        """How each is compressed."""
        return np.frombuffer(self.data, np.uint8)[self._ends]

    @cached_property
    def _inflated(self) -> tuple[Integers, Integers]:
        """Of each, if it is compressed, its bytes before that, as it says itself; and where it begins behind that."""
        data = np.frombuffer(self.data, np.uint8)
        if int(self.at[-1]) + _MAX_DIGITS > len(data):  # a damaged number may have no end
            data = np.append(data, np.zeros(_MAX_DIGITS, np.uint8))
        return varints(data, self.at)

    @property
    def size_bytes(self) -> int:
        """Bytes of all before compression, as they say themselves."""
        return int(np.where(self._kinds == PLAIN, self.size, self._inflated[0]).sum())

    def blocks(self) -> list[bytes | memoryview]:
        """Each before compression. Raises FormatError."""
        content = memoryview(self.data)
        stored = [content[at:end] for at, end in zip(self.at.tolist(), self._ends.tolist(), strict=True)]
        self._check(stored)
        if not self._kinds.any():
            return list(stored)
        lengths, begins = self._inflated
        places = zip(stored, self._kinds.tolist(), lengths.tolist(), (begins - self.at).tolist(), strict=True)
        try:
            return [
                block if kind == PLAIN else _CODEC[kind].decompress(block[begin:], length, asbytes=True)
                for block, kind, length, begin in places
            ]
        except (OSError, pa.ArrowException) as problem:
            raise self.table.make_damage_error(f"a block cannot be read: {problem}") from problem

    def _check(self, stored: Sequence[memoryview]) -> None:
        """Raise FormatError for blocks that are damaged, as far as that is seen before they are inflated."""
        sums = np.fromiter(map(checksum_of, stored, self._kinds.tolist()), np.uint32, len(stored))
        said = np.ndarray((len(self.data) - 3,), "<u4", self.data, 0, (1,))[self._ends + 1]
        if (sums != said).any():
            raise self.table.make_damage_error("the checksum of a block is wrong")
        unknown = set(self._kinds.tolist()) - {PLAIN, *_CODECS}
        if unknown:
            raise self.table.make_damage_error(f"a block is compressed in the way {min(unknown)}")
        if (too_long := (self._kinds != PLAIN) & (self._inflated[0] > MAX_BLOCK_BYTES)).any():
            raise self.table.make_damage_error(f"a block has {self._inflated[0][too_long][0]} bytes")


class SortedTable:
    """One table file, open. What it does not know is refused as damage: no release has written it."""

    def __init__(self, path: Path, bounds: tuple[bytes, bytes]) -> None:
        """Read what the file says of itself. Raises FormatError, StorageError, FileNotFoundError.

        ``bounds``: the first and the last key that the database says it has. A mark may reach further: what it hides
        there is said by other files.
        """
        self.path, self._bounds = path, bounds
        self.first_key = bounds[0]
        try:
            self._file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise
        except OSError as problem:
            raise StorageError(f"Could not open {path}: {problem}") from problem
        try:
            status = os.fstat(self._file)
            self._size = status.st_size
            self.identity = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
            """Of the file: links to it have the same, and its content never changes."""
            meta, self._index = self._footer()
            self._meta = {key: _handle(value, 0)[0] for key, value in _entries(self._block(meta))}
            self.properties = dict(_entries(self._block(self._meta[b"rocksdb.properties"])))
            """What the file says of itself, by name, in the order of the names."""
            self._refuse_unknown()
        except BaseException:
            self.close()
            raise

    @property
    def rows(self) -> int:
        """How many entries it has."""
        return self._count("rocksdb.num.entries")

    def close(self) -> None:
        """Let the file go."""
        os.close(self._file)
        self._file = -1

    @cached_property
    def blocks(self) -> Blocks:
        """All data blocks."""
        is_short = self._count("rocksdb.index.value.is.delta.encoded", fixed=True)
        keys, at, size = _index(self._block(self._index), is_short=bool(is_short), path=self.path)
        if not self._count("rocksdb.index.key.is.user.key", fixed=True):
            keys = Packed(keys.data, keys.at, keys.size - SUFFIX_BYTES)
        if len(keys) != self._count("rocksdb.num.data.blocks"):
            raise self.make_damage_error(f"its index has {len(keys)} blocks")
        return Blocks(keys, at, size)

    @cached_property
    def cuts(self) -> list[bytes]:
        """Keys between which there are about ``PORTION_BYTES``, the same whatever is read of the table."""
        portions = np.cumsum(np.maximum(self.blocks.size, BLOCK_BYTES)) // PORTION_BYTES
        return [self.blocks.keys[int(at)] + b"\0" for at in np.flatnonzero(np.diff(portions))]

    @cached_property
    def hidden(self) -> list[Hidden]:
        """Ranges of rows that were deleted as such, within the bounds of the file."""
        where = self._meta.get(b"rocksdb.range_del")
        if where is None:
            return []
        found = []
        for key, end in _entries(self._block(where)):
            suffix = int.from_bytes(key[-SUFFIX_BYTES:], "little")
            found.append(Hidden(key[:-SUFFIX_BYTES], end, suffix >> 8))
        first, last = self._bounds
        if any(each.end > last for each in found) and self._last_key() == last:
            last += b"\0"  # the bound is an entry; else it is where the next file begins
        within = [replace(each, begin=max(each.begin, first), end=min(each.end, last)) for each in found]
        return [each for each in within if each.begin < each.end]

    def _last_key(self) -> bytes | None:
        """That of the last entry, if there are any."""
        if not len(self.blocks):
            return None
        at, size = int(self.blocks.at[-1]), int(self.blocks.size[-1])
        last = find([self._block((at, size))], str(self.path))
        keys = last.entries(str(self.path)).keys
        return keys[len(keys) - 1]

    def span(self, begin: bytes, end: bytes) -> Span:
        """The data blocks that may have keys from ``begin`` up to ``end``."""
        return Span(self, *self.blocks.within(begin, end))

    def _footer(self) -> tuple[Handle, Handle]:
        footer = self.bytes_at(max(0, self._size - FOOTER_BYTES), FOOTER_BYTES)
        version, magic = struct.unpack_from("<IQ", footer, FOOTER_BYTES - 12)
        if magic != MAGIC or version not in FORMATS or footer[0] != XXH3:
            raise self.make_damage_error(
                f"it ends like no table of the formats {FORMATS.start} to {FORMATS.stop - 1} with xxh3"
            )
        meta, at = _handle(footer, 1)
        return meta, _handle(footer, at)[0]

    def _refuse_unknown(self) -> None:
        if self._count("rocksdb.merge.operands") or self._count("rocksdb.block.based.table.index.type", fixed=True):
            raise self.make_damage_error("it has merge operands, or an index in parts")

    def _count(self, name: str, *, fixed: bool = False) -> int:
        value = self.properties.get(name.encode(), b"\0")
        return int.from_bytes(value, "little") if fixed else _varint(value, 0)[0]

    def _block(self, handle: Handle) -> bytes:
        at, size = handle
        content = Content(self, self.bytes_at(at, size + TRAILER_BYTES), np.array([0]), np.array([size]))
        return bytes(content.blocks()[0])

    def bytes_at(self, at: int, size: int) -> bytes:
        """A piece of the file. Raises FormatError, StorageError."""
        if not 0 <= at <= self._size - size:
            raise self.make_damage_error("it is too short")
        try:
            content = os.pread(self._file, size, at)
        except OSError as problem:
            raise StorageError(f"Could not read {self.path}: {problem}") from problem
        if len(content) != size:
            raise self.make_damage_error("it is too short")
        return content

    def make_damage_error(self, why: str) -> FormatError:
        """What is raised for a file that is."""
        return FormatError(f"{self.path} is damaged: {why}.")


_CODEC = {kind: pa.Codec(name) for kind, name in _CODECS.items()}


def checksum_of(block: bytes | memoryview, kind: int) -> int:
    """That of a block and, by a product, of the byte behind it for its ``kind`` of compression."""
    return (xxh3_64_intdigest(block) ^ kind * _LAST_BYTE) & 0xFFFFFFFF


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < MORE:
            return number, at


def _handle(data: bytes, at: int) -> tuple[Handle, int]:
    begin, at = _varint(data, at)
    size, at = _varint(data, at)
    return (begin, size), at


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a small block, one by one."""
    at, end, key = 0, _entries_end(block), b""
    while at < end:
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        size, at = _varint(block, at)
        key = key[:shared] + block[at : at + own]
        at += own + size
        yield key, block[at - size : at]


def _index(block: bytes, *, is_short: bool, path: Path) -> tuple[Packed, Integers, Integers]:
    """The keys of an index, and where its blocks begin and their sizes. Every entry is a run of its own."""
    end = _entries_end(block)
    data = np.frombuffer(block, np.uint8)
    begins = np.frombuffer(block, "<u4", (len(block) - end) // 4 - 1 if end else 0, max(0, end)).astype(np.int64)
    shared, at = varints(data, begins)
    size, at = varints(data, at)
    if not is_short:
        _, at = varints(data, at)
    block_at, behind = varints(data, at + size)
    block_size, behind = varints(data, behind)
    if shared.any() or (behind != np.append(begins[1:], [end] * (len(begins) > 0))).any():
        raise FormatError(f"{path} is damaged: its index is not of one entry a run.")
    return Packed(data, at, size), block_at, block_size


def _entries_end(block: bytes) -> int:
    runs: int = _U32.unpack_from(block, len(block) - 4)[0]
    return len(block) - 4 * (1 + runs)
