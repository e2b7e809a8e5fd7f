"""Reads a RocksDB table file: its blocks, and their content before compression.

It is a block-based table (https://github.com/facebook/rocksdb/wiki/Rocksdb-BlockBasedTable-Format) as this store writes
it: data blocks, an index with one entry for each block, properties, and a footer. One byte for its compression and a
checksum follow each block. ``blocks`` reads the content of data blocks.
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

from pyspark_ckpt.state_store.arrays.packed import Bytes, Integers, Packed
from pyspark_ckpt.state_store.errors import FormatError, StorageError
from pyspark_ckpt.state_store.plain_files import open_plain_descriptor
from pyspark_ckpt.state_store.sst.blocks import Entries, parse_entries, varints
from pyspark_ckpt.state_store.sst.compressions import OTHER_COMPRESSIONS, decompress_other
from pyspark_ckpt.state_store.sst.layout import (
    FOOTER_BYTES,
    FOOTER_END,
    LZ4,
    LZ4HC,
    MAGIC,
    MAX_BLOCK_BYTES,
    PLAIN,
    SUFFIX_BYTES,
    TRAILER_BYTES,
    XXH3,
    ZSTD,
    BlockHandle,
    compute_checksum,
    read_handle,
    read_number,
)

FORMATS = range(3, 6)
_COMPRESSIONS = {b"", b"NoCompression", b"LZ4", b"LZ4HC", b"ZSTD"}
"""RocksDB's names of the compressions that are read here."""
_CODECS = {LZ4: "lz4_raw", LZ4HC: "lz4_raw", ZSTD: "zstd"}
PORTION_BYTES = 2 << 20
"""About how much of each table is read at once, unless large values were compressed much."""
BLOCK_BYTES = 4 << 10
BLOCKS_AT_ONCE = 64
_U32 = struct.Struct("<I")
_MAX_DIGITS = 8


@dataclass(frozen=True)
class RangeDeletion:
    """A range deletion: it hides rows from key ``begin`` up to ``end`` that are older than ``sequence``."""

    begin: bytes
    end: bytes
    sequence: int


@dataclass(frozen=True, eq=False)
class Blocks:
    """The data blocks of a table: where they begin, and their sizes.

    Each has a key that is at least its last one and less than the first one of the next block.
    """

    keys: Packed
    at: Integers
    size: Integers

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.keys)

    def within(self, begin: bytes, end: bytes) -> tuple[int, int]:
        """Return the first block that may have keys from ``begin`` up to ``end``, and the one after the last."""
        if begin >= end:
            return 0, 0
        first = bisect_left(self.keys, begin)
        behind = bisect_left(self.keys, end, lo=first)
        if behind == len(self) or (behind > first and self.keys[behind - 1] + b"\0" == end):
            return first, behind
        return first, behind + 1  # the first block with a key of ``end`` or more may begin with smaller ones


@dataclass(frozen=True, eq=False)
class BlockRange:
    """Consecutive data blocks of a table: from number ``first`` up to ``behind`` (exclusive)."""

    table: SortedTable
    first: int
    behind: int

    def __len__(self) -> int:
        """Return the number of blocks."""
        return self.behind - self.first

    @property
    def at(self) -> Integers:
        """Where each block begins in the file."""
        return self.table.blocks.at[self.first : self.behind]

    @property
    def size(self) -> Integers:
        """Bytes of each block in the file."""
        return self.table.blocks.size[self.first : self.behind]

    @property
    def stored_bytes(self) -> int:
        """About the bytes of all blocks. A block counts as at least BLOCK_BYTES, a larger one as compressed."""
        return int(np.maximum(self.size, BLOCK_BYTES).sum())

    @property
    def middle(self) -> bytes:
        """A key that halves the blocks; empty if there are fewer than two."""
        return self.table.blocks.keys[(self.first + self.behind) // 2 - 1] + b"\0" if len(self) > 1 else b""

    def entries(self) -> Iterator[Entries]:
        """Yield the entries of the blocks, in portions of some blocks or about PORTION_BYTES.

        Raises FormatError, StorageError.
        """
        what = str(self.table.path)
        for begin, end in _cut(self.size):
            stored = BlockRange(self.table, self.first + begin, self.first + end).read()
            for part in stored.parts():
                yield parse_entries(part.blocks(), what).entries(what, may_merge=self.table.may_merge)

    def read(self) -> StoredBlocks:
        """Read the blocks; there must be at least one. Raises FormatError, StorageError."""
        at, size = self.at, self.size
        if (at[1:] < at[:-1] + size[:-1] + TRAILER_BYTES).any():
            raise self.table.make_damage_error("its index says that blocks overlap")
        data = self.table.bytes_at(int(at[0]), int(at[-1] + size[-1] + TRAILER_BYTES - at[0]))
        return StoredBlocks(self.table, data, at - at[0], size)


@dataclass(frozen=True, eq=False)
class StoredBlocks:
    """Data blocks as they are stored: where each begins in ``data``, and its size there."""

    table: SortedTable
    data: bytes
    at: Integers
    size: Integers

    @cached_property
    def _ends(self) -> Integers:
        return self.at + self.size

    @cached_property
    def _kinds(self) -> Bytes:
        """How each block is compressed."""
        return np.frombuffer(self.data, np.uint8)[self._ends]

    @cached_property
    def _inflated(self) -> tuple[Integers, Integers]:
        """For each compressed block, the uncompressed size that it declares, and where its compressed bytes begin."""
        data = np.frombuffer(self.data, np.uint8)
        if int(self.at[-1]) + _MAX_DIGITS > len(data):  # a damaged number may have no end
            data = np.append(data, np.zeros(_MAX_DIGITS, np.uint8))
        return varints(data, self.at)

    @property
    def _sizes(self) -> Integers:
        return np.where(self._kinds == PLAIN, self.size, self._inflated[0])

    @property
    def size_bytes(self) -> int:
        """Bytes of all blocks before compression, as the blocks declare them."""
        return int(self._sizes.sum())

    def parts(self) -> Iterator[StoredBlocks]:
        """Yield the blocks in parts of about PORTION_BYTES before compression."""
        for begin, end in _cut(self._sizes):
            yield StoredBlocks(self.table, self.data, self.at[begin:end], self.size[begin:end])

    def blocks(self) -> list[bytes | memoryview]:
        """Return each block, decompressed. Raises FormatError."""
        content = memoryview(self.data)
        stored = [content[at:end] for at, end in zip(self.at.tolist(), self._ends.tolist(), strict=True)]
        self._check(stored)
        if not self._kinds.any():
            return list(stored)
        lengths, begins = self._inflated
        places = zip(stored, self._kinds.tolist(), lengths.tolist(), (begins - self.at).tolist(), strict=True)
        try:
            return [
                block if kind == PLAIN else _decompress(kind, block, begin, length)
                for block, kind, length, begin in places
            ]
        except (OSError, ValueError, pa.ArrowException) as problem:
            raise self.table.make_damage_error(f"a block cannot be read: {problem}") from problem

    def _check(self, stored: Sequence[memoryview]) -> None:
        """Raise FormatError for damaged blocks, as far as damage shows before they are decompressed."""
        sums = np.fromiter(map(compute_checksum, stored, self._kinds.tolist()), np.uint32, len(stored))
        said = np.ndarray((len(self.data) - 3,), "<u4", self.data, 0, (1,))[self._ends + 1]
        if (sums != said).any():
            raise self.table.make_damage_error("the checksum of a block is wrong")
        others = OTHER_COMPRESSIONS if self.table.may_merge else ()
        if unknown := set(self._kinds.tolist()) - {PLAIN, *_CODECS, *others}:
            raise self.table.make_damage_error(f"a block has the unknown compression type {min(unknown)}")
        if (too_long := (self._kinds != PLAIN) & (self._inflated[0] > MAX_BLOCK_BYTES)).any():
            raise self.table.make_damage_error(f"a block declares too many bytes: {self._inflated[0][too_long][0]}")


def _cut(sizes: Integers) -> Iterator[tuple[int, int]]:
    """Yield where to cut blocks into portions: BLOCKS_AT_ONCE of them, or about PORTION_BYTES, and at least one."""
    ends, begin = np.cumsum(sizes), 0
    while begin < len(sizes):
        fit = int(np.searchsorted(ends, (int(ends[begin - 1]) if begin else 0) + PORTION_BYTES, "right"))
        end = max(begin + 1, min(fit, begin + BLOCKS_AT_ONCE))
        yield begin, end
        begin = end


class SortedTable:
    """One open table file. Unknown features are rejected as damage: no release has written them."""

    def __init__(self, path: Path, bounds: tuple[bytes, bytes], *, may_merge: bool = False) -> None:
        """Open the file and read its properties. Raises FormatError, StorageError, FileNotFoundError.

        ``bounds``: the first and last key of the file, as the database lists them. A range deletion may extend beyond
        them, where other files have it as well. ``may_merge``: whether it may have merge operands, which this store
        never writes.
        """
        self.path, self._bounds, self.may_merge = path, bounds, may_merge
        self.first_key = bounds[0]
        try:
            self._file = open_plain_descriptor(path)
        except FileNotFoundError:
            raise
        except OSError as problem:
            raise StorageError(f"Could not open {path}: {problem}") from problem
        try:
            status = os.fstat(self._file)
            self._size = status.st_size
            self.identity = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
            """Identity of the file: its links have the same one, and its content never changes."""
            meta, self._index = self._footer()
            self._meta = {key: read_handle(value, 0)[0] for key, value in _entries(self._block(meta))}
            self.properties = dict(_entries(self._block(self._meta[b"rocksdb.properties"])))
            """The properties of the file by name, in the order of names."""
            self._refuse_unknown()
        except BaseException:
            self.close()
            raise

    @property
    def merge_operands(self) -> int:
        """How many entries of the file add to the value of a key."""
        return self._count("rocksdb.merge.operands")

    @property
    def is_readable(self) -> bool:
        """Whether blocks are compressed in a way that is read here."""
        return self.properties.get(b"rocksdb.compression", b"") in _COMPRESSIONS

    @property
    def rows(self) -> int:
        """How many entries the file has."""
        return self._count("rocksdb.num.entries")

    def close(self) -> None:
        """Close the file."""
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
            raise self.make_damage_error(f"its index lists {len(keys)} blocks, but its properties have another number")
        return Blocks(keys, at, size)

    @cached_property
    def cuts(self) -> list[bytes]:
        """Keys between which there are about ``PORTION_BYTES``. They do not depend on what is read of the table."""
        portions = np.cumsum(np.maximum(self.blocks.size, BLOCK_BYTES)) // PORTION_BYTES
        return [self.blocks.keys[int(at)] + b"\0" for at in np.flatnonzero(np.diff(portions))]

    @cached_property
    def hidden(self) -> list[RangeDeletion]:
        """The range deletions of the file, within its bounds."""
        where = self._meta.get(b"rocksdb.range_del")
        if where is None:
            return []
        found = []
        for key, end in _entries(self._block(where)):
            suffix = int.from_bytes(key[-SUFFIX_BYTES:], "little")
            found.append(RangeDeletion(key[:-SUFFIX_BYTES], end, suffix >> 8))
        first, last = self._bounds
        if any(each.end > last for each in found) and self._last_key() == last:
            last += b"\0"  # the bound is the key of an entry; otherwise it is where the next file begins
        within = [replace(each, begin=max(each.begin, first), end=min(each.end, last)) for each in found]
        return [each for each in within if each.begin < each.end]

    def _last_key(self) -> bytes | None:
        """Return the key of the last entry, if there is one."""
        if not len(self.blocks):
            return None
        at, size = int(self.blocks.at[-1]), int(self.blocks.size[-1])
        last = parse_entries([self._block((at, size))], str(self.path))
        keys = last.entries(str(self.path)).keys
        return keys[len(keys) - 1]

    def span(self, begin: bytes, end: bytes) -> BlockRange:
        """Return the data blocks that may have keys from ``begin`` up to ``end``."""
        return BlockRange(self, *self.blocks.within(begin, end))

    def _footer(self) -> tuple[BlockHandle, BlockHandle]:
        footer = self.bytes_at(max(0, self._size - FOOTER_BYTES), FOOTER_BYTES)
        version, magic = FOOTER_END.unpack_from(footer, FOOTER_BYTES - FOOTER_END.size)
        if magic != MAGIC or version not in FORMATS or footer[0] != XXH3:
            raise self.make_damage_error(
                f"its footer is not that of a table of format {FORMATS.start} to {FORMATS.stop - 1} with xxh3 checksums"
            )
        meta, at = read_handle(footer, 1)
        return meta, read_handle(footer, at)[0]

    def _refuse_unknown(self) -> None:
        if (self.merge_operands and not self.may_merge) or self._count(
            "rocksdb.block.based.table.index.type", fixed=True
        ):
            raise self.make_damage_error("it has merge operands or a partitioned index, which this store never writes")

    def _count(self, name: str, *, fixed: bool = False) -> int:
        value = self.properties.get(name.encode(), b"\0")
        return int.from_bytes(value, "little") if fixed else read_number(value, 0)[0]

    def _block(self, handle: BlockHandle) -> bytes:
        at, size = handle
        content = StoredBlocks(self, self.bytes_at(at, size + TRAILER_BYTES), np.array([0]), np.array([size]))
        return bytes(content.blocks()[0])

    def bytes_at(self, at: int, size: int) -> bytes:
        """Return a piece of the file. Raises FormatError, StorageError."""
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
        """Return the error to raise for a damaged file."""
        return FormatError(f"{self.path} is damaged: {why}.")


_CODEC = {kind: pa.Codec(name) for kind, name in _CODECS.items()}


def _decompress(kind: int, block: memoryview, begin: int, length: int) -> bytes:
    """Return the content of a block with ``length`` bytes. Raises ValueError, OSError, pa.ArrowException.

    ``begin``: where its compressed bytes begin, after its length.
    """
    if kind in _CODEC:
        content: bytes = _CODEC[kind].decompress(block[begin:], length, asbytes=True)
        return content
    return decompress_other(kind, block, begin, length)


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of a small block."""
    at, end, key = 0, _entries_end(block), b""
    while at < end:
        shared, at = read_number(block, at)
        own, at = read_number(block, at)
        size, at = read_number(block, at)
        key = key[:shared] + block[at : at + own]
        at += own + size
        yield key, block[at - size : at]


def _index(block: bytes, *, is_short: bool, path: Path) -> tuple[Packed, Integers, Integers]:
    """Return the keys of an index, where its blocks begin, and their sizes. Every entry must be a run of its own."""
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
        raise FormatError(f"{path} is damaged: its index does not have exactly one entry in each run.")
    return Packed(data, at, size), block_at, block_size


def _entries_end(block: bytes) -> int:
    runs: int = _U32.unpack_from(block, len(block) - 4)[0]
    return len(block) - 4 * (1 + runs)
