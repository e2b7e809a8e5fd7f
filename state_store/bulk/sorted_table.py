"""Rows of a table file, many at once: what RocksDB's iterator takes one call each for.

A block-based table of RocksDB (https://github.com/facebook/rocksdb/wiki/Rocksdb-BlockBasedTable-Format), of the kind
that this store writes: data blocks, each ended by one byte for its compression and a checksum; an index of one entry
a block; properties; a footer. A block has runs of entries, and where each run begins in an array at its end. An entry
says how many bytes its key shares with that of the one before it in its run; a key ends in eight bytes for the
sequence number and the kind of the entry. All runs of many blocks are read side by side, entry by entry.
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
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from pyspark_ckpt.state_store.bulk.packed import Bytes, Integers, Packed
from pyspark_ckpt.state_store.errors import FormatError

FOOTER_BYTES = 53
MAGIC = 0x88E241B785F4CFF7
FORMATS = range(3, 6)
XXH3 = 4
"""The checksum of blocks."""
TRAILER_BYTES = 5
SUFFIX_BYTES = 8
"""Of a key in a table: its sequence number and kind."""
DELETION, VALUE = 0, 1
_PLAIN, _LZ4, _LZ4HC, _ZSTD = 0, 4, 5, 7
_CODECS = {_LZ4: "lz4_raw", _LZ4HC: "lz4_raw", _ZSTD: "zstd"}
MOST_BLOCK_BYTES = 1 << 31
PORTION_BYTES = 2 << 20
"""So much of each table, before it was compressed, is about what is read at once."""
BLOCK_BYTES = 4 << 10
WIDEST_KEY = 512
"""Longer keys are put together one by one: a matrix of all would have more bytes than they."""
_LAST_BYTE = 0x6B9083D9
_U32 = struct.Struct("<I")
_MORE = 0x80
_MOST_SHIFT = 56
"""No number in a table has more bits, and damaged ones must end."""

Handle = tuple[int, int]
"""Where a block begins in the file, and its bytes without those at its end."""


@dataclass(frozen=True)
class Hidden:
    """Rows from key ``begin`` up to ``end`` that are hidden if they are older than ``sequence``."""

    begin: bytes
    end: bytes
    sequence: int


@dataclass(frozen=True, eq=False)
class Entries:
    """Entries of a table in key order: of one key, newer ones first."""

    keys: Packed
    values: Packed
    sequences: npt.NDArray[np.uint64]
    kinds: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        """How many there are."""
        return len(self.keys)

    def taken(self, which: slice | npt.NDArray[np.generic]) -> Entries:
        """Those at some positions, or where a mask is true."""
        return Entries(self.keys.taken(which), self.values.taken(which), self.sequences[which], self.kinds[which])


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
        # The first block with a key of ``end`` or more may begin with smaller ones.
        return first, min(len(self), bisect_left(self.keys, end, lo=first) + 1)


class SortedTable:
    """One table file, open. What it does not know is refused as damage: no release has written it."""

    def __init__(self, path: Path, bounds: tuple[bytes, bytes] | None = None) -> None:
        """Read what the file says of itself. Raises FormatError, FileNotFoundError.

        ``bounds``: the first and the last key that the database says it has. A mark may reach further: what it hides
        there is said by other files.
        """
        self._path, self._bounds = path, bounds
        self._file = os.open(path, os.O_RDONLY)
        try:
            status = os.fstat(self._file)
            self._size = status.st_size
            self.identity = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
            """Of the file: links to it have the same, and its content never changes."""
            meta, self._index = self._footer()
            self._meta = {key: _handle(value, 0)[0] for key, value in _entries(self._block(meta))}
            self._properties = dict(_entries(self._block(self._meta[b"rocksdb.properties"])))
            self._refuse_unknown()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let the file go."""
        os.close(self._file)

    @cached_property
    def blocks(self) -> Blocks:
        """All data blocks."""
        is_short = self._count("rocksdb.index.value.is.delta.encoded", fixed=True)
        keys, at, size = _index(self._block(self._index), is_short=bool(is_short), path=self._path)
        if not self._count("rocksdb.index.key.is.user.key", fixed=True):
            keys = Packed(keys.data, keys.at, keys.size - SUFFIX_BYTES)
        if len(keys) != self._count("rocksdb.num.data.blocks"):
            raise self._damaged(f"its index has {len(keys)} blocks")
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
        if self._bounds is None:
            return found
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
        entries, _ = entries_of([self._inflated(self._bytes(at, size + TRAILER_BYTES), 0, size)], str(self._path))
        return entries.keys[len(entries) - 1]

    def has(self, begin: bytes, end: bytes) -> bool:
        """Whether there is a block that may have keys from ``begin`` up to ``end``."""
        first, behind = self.blocks.within(begin, end)
        return first < behind

    def content(self, begin: bytes, end: bytes) -> list[bytes]:
        """The data blocks that may have keys from ``begin`` up to ``end``, before compression. Raises FormatError."""
        first, behind = self.blocks.within(begin, end)
        if first == behind:
            return []
        places, sizes = (each[first:behind].tolist() for each in (self.blocks.at, self.blocks.size))
        content = self._bytes(places[0], places[-1] + sizes[-1] + TRAILER_BYTES - places[0])
        return [self._inflated(content, at - places[0], size) for at, size in zip(places, sizes, strict=True)]

    def _footer(self) -> tuple[Handle, Handle]:
        footer = self._bytes(max(0, self._size - FOOTER_BYTES), FOOTER_BYTES)
        version, magic = struct.unpack_from("<IQ", footer, FOOTER_BYTES - 12)
        if magic != MAGIC or version not in FORMATS or footer[0] != XXH3:
            raise self._damaged(f"it ends like no table of the formats {FORMATS.start} to {FORMATS.stop - 1} with xxh3")
        meta, at = _handle(footer, 1)
        return meta, _handle(footer, at)[0]

    def _refuse_unknown(self) -> None:
        if self._count("rocksdb.merge.operands") or self._count("rocksdb.block.based.table.index.type", fixed=True):
            raise self._damaged("it has merge operands, or an index in parts")

    def _count(self, name: str, *, fixed: bool = False) -> int:
        value = self._properties.get(name.encode(), b"\0")
        return int.from_bytes(value, "little") if fixed else _varint(value, 0)[0]

    def _block(self, handle: Handle) -> bytes:
        at, size = handle
        return bytes(self._inflated(self._bytes(at, size + TRAILER_BYTES), 0, size))

    def _inflated(self, content: bytes, at: int, size: int) -> bytes:
        end = at + size
        kind = content[end]
        block = memoryview(content)[at:end]
        # The checksum is of the block, and by this product of the byte for its kind.
        checksum = (xxh3_64_intdigest(block) ^ kind * _LAST_BYTE) & 0xFFFFFFFF
        if checksum != _U32.unpack_from(content, end + 1)[0]:
            raise self._damaged("the checksum of a block is wrong")
        if kind == _PLAIN:
            return content[at:end]
        if kind not in _CODECS:
            raise self._damaged(f"a block is compressed in the way {kind}")
        length, begin = _varint(content, at)
        if length > MOST_BLOCK_BYTES:
            raise self._damaged(f"a block has {length} bytes")
        try:
            inflated: bytes = _CODEC[kind].decompress(block[begin - at :], length, asbytes=True)
        except (OSError, pa.ArrowException) as problem:
            raise self._damaged(f"a block cannot be read: {problem}") from problem
        return inflated

    def _bytes(self, at: int, size: int) -> bytes:
        content = os.pread(self._file, size, at) if size <= self._size else b""
        if len(content) != size:
            raise self._damaged("it is too short")
        return content

    def _damaged(self, why: str) -> FormatError:
        return FormatError(f"{self._path} is damaged: {why}.")


_CODEC = {kind: pa.Codec(name) for kind, name in _CODECS.items()}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < _MORE:
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
    shared, at = _varints(data, begins)
    size, at = _varints(data, at)
    if not is_short:
        _, at = _varints(data, at)
    block_at, behind = _varints(data, at + size)
    block_size, behind = _varints(data, behind)
    if shared.any() or (behind != np.append(begins[1:], [end] * (len(begins) > 0))).any():
        raise FormatError(f"{path} is damaged: its index is not of one entry a run.")
    return Packed(data, at, size), block_at, block_size


def _entries_end(block: bytes) -> int:
    runs: int = _U32.unpack_from(block, len(block) - 4)[0]
    return len(block) - 4 * (1 + runs)


def entries_of(blocks: Sequence[bytes], what: str) -> tuple[Entries, Integers]:
    """All entries of data blocks, in their order, and how many each block has. Raises FormatError about ``what``."""
    if not blocks:
        nothing = Packed.of([])
        return Entries(nothing, nothing, np.zeros(0, np.uint64), np.zeros(0, np.uint8)), np.zeros(0, np.int64)
    data, run_begin, run_end, runs = _runs(blocks, what)
    at, counts = _walked(data, run_begin, run_end, what)
    shared, own, size, key_at = _headers(data, at)
    entries = _with_keys(data, shared, own, key_at, Packed(data, key_at + own, size), what)
    return entries, np.add.reduceat(counts, np.cumsum(runs) - runs)


def _walked(data: Bytes, at: Integers, ends: Integers, what: str) -> tuple[Integers, Integers]:
    """Where all entries of some runs begin, run by run, and how many each run has. All runs go on side by side."""
    run, counts = np.arange(len(at)), np.zeros(len(at), np.int64)
    steps = []
    while len(at):
        steps.append((run, at))
        counts[run] += 1
        _, own, size, key_at = _headers(data, at)
        at = key_at + own + size
        if (at > ends).any():
            raise FormatError(f"{what} is damaged: an entry ends behind its block.")
        goes_on = at < ends
        if not goes_on.all():
            run, at, ends = run[goes_on], at[goes_on], ends[goes_on]
    first = np.cumsum(counts) - counts
    begins = np.empty(int(counts.sum()), np.int64)
    for number, (run, at) in enumerate(steps):
        begins[first[run] + number] = at
    return begins, counts


def _runs(blocks: Sequence[bytes], what: str) -> tuple[Bytes, Integers, Integers, Integers]:
    """The blocks in one array, where each run begins and ends in it, and how many runs each block has."""
    pad = bytes(WIDEST_KEY)
    data = np.frombuffer(b"".join([pad, *blocks, pad]), np.uint8)
    ends = len(pad) + np.cumsum([len(block) for block in blocks])
    begins = np.concatenate(([len(pad)], ends[:-1]))
    words = np.ndarray((len(data) - 3,), "<u4", data, 0, (1,))
    runs = words[ends - 4].astype(np.int64)
    entries_end = ends - 4 - 4 * runs
    if (runs < 1).any() or (entries_end < begins).any():
        raise FormatError(f"{what} is damaged: a block has no runs, or more than bytes.")
    block_of = np.repeat(np.arange(len(blocks)), runs)
    last_run = np.cumsum(runs) - 1
    nth = np.arange(len(block_of)) - (last_run - runs + 1)[block_of]
    run_begin = begins[block_of] + words[entries_end[block_of] + 4 * nth]
    run_end = np.append(run_begin[1:], 0)
    run_end[last_run] = entries_end
    if (run_begin >= run_end).any():
        raise FormatError(f"{what} is damaged: a run of a block has no entries.")
    return data, run_begin, run_end, runs


def _headers(data: Bytes, at: Integers) -> tuple[Integers, Integers, Integers, Integers]:
    """Three numbers at each place, and what follows them."""
    three = np.ndarray((len(data) - 3,), "<u4", data, 0, (1,))[at]
    if not (np.bitwise_or.reduce(three) & 0x808080):
        columns = three.view(np.uint8)
        shared, own, size = (columns[number::4].astype(np.int64) for number in range(3))
        return shared, own, size, at + 3
    shared, behind = _varints(data, at)
    own, behind = _varints(data, behind)
    size, behind = _varints(data, behind)
    return shared, own, size, behind


def _varints(data: Bytes, at: Integers) -> tuple[Integers, Integers]:
    """The number at each place, of seven bits a byte, and where it ends."""
    number = np.zeros(len(at), np.int64)
    ends, going, shift = at.copy(), np.arange(len(at)), 0
    while len(going) and shift < _MOST_SHIFT:
        byte = data[ends[going]].astype(np.int64)
        number[going] |= (byte & 0x7F) << shift
        ends[going] += 1
        going, shift = going[byte >= _MORE], shift + 7
    return number, ends


def _with_keys(data: Bytes, shared: Integers, own: Integers, at: Integers, values: Packed, what: str) -> Entries:
    """The entries with their keys put together of what each shares with the one before, and its own."""
    size = shared + own
    if int(size.min()) < SUFFIX_BYTES or shared[0] or (shared[1:] > size[:-1]).any():
        raise FormatError(f"{what} is damaged: an entry has no key.")
    width = int(size.max(initial=0))
    if width > WIDEST_KEY:
        keys = _long_keys(data.tobytes(), shared, own, at)
    else:
        windows = np.ndarray((len(data) - width + 1,), f"V{max(1, width)}", data, 0, (1,))
        matrix = windows[at - shared].view(np.uint8).reshape(len(at), width)
        for column in range(int(shared.max(initial=0))):  # a byte stands in the last entry that has it as its own
            owners = np.flatnonzero(shared <= column)
            matrix[:, column] = np.repeat(matrix[owners, column], np.diff(owners, append=len(at)))
        keys = Packed(matrix.reshape(-1), np.arange(len(at)) * width, size)
    suffix_at = keys.at + size - SUFFIX_BYTES
    suffixes = np.ndarray((max(0, len(keys.data) - 7),), "<u8", keys.data, 0, (1,))[suffix_at]
    kinds = (suffixes & np.uint64(0xFF)).astype(np.uint8)
    if (kinds > VALUE).any():
        raise FormatError(f"{what} is damaged: it has entries that are neither values nor deletions.")
    return Entries(Packed(keys.data, keys.at, size - SUFFIX_BYTES), values, suffixes >> np.uint64(8), kinds)


def _long_keys(data: bytes, shared: Integers, own: Integers, at: Integers) -> Packed:
    keys, key = [], b""
    for common, rest, begin in zip(shared.tolist(), own.tolist(), at.tolist(), strict=True):
        key = key[:common] + data[begin : begin + rest]
        keys.append(key)
    return Packed.of(keys)
