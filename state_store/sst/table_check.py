"""Reads a RocksDB table file once and checks that every byte it returns is as written.

A table consists of blocks without gaps and a footer. The kind of compression and a checksum follow each block. The
content of a footer has only one valid form. The index of the blocks is near the end and is read first. Then all bytes
are read in order, and each block is compared with its checksum before it is returned.

The state server imports neither numpy nor pyarrow, so this is plain Python. Only an index compressed by zstd needs
pyarrow, which is imported for it alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import TracebackType

from xxhash import xxh3_64_intdigest

from pyspark_ckpt.state_store.chunks import CHUNK_BYTES
from pyspark_ckpt.state_store.database import TABLE_FORMAT_VERSION
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.plain_files import open_plain
from pyspark_ckpt.state_store.sst.layout import (
    FOOTER_BYTES,
    FOOTER_END,
    LAST_BYTE,
    LZ4,
    LZ4HC,
    MAGIC,
    MAX_BLOCK_BYTES,
    MORE,
    PLAIN,
    SUFFIX_BYTES,
    TRAILER,
    TRAILER_BYTES,
    XXH3,
    ZSTD,
    BlockHandle,
    encode_number,
    read_handle,
    read_number,
)

_LZ4_MORE, _LZ4_MOST = 15, 255
"""When all bits of a part of a size are set, another part follows."""


def check_table(path: Path) -> None:
    """Read and check a whole table file. Raises FormatError that names it if it is damaged, OSError."""
    for _ in check_chunks(path):
        pass


def check_chunks(path: Path) -> Iterator[bytes]:
    """Yield all bytes of a table file, in order. They are the very bytes whose checksums were verified.

    Only after the last chunk is it known that the file is complete. Raises FormatError that names the file, OSError.
    """
    with closing(CheckedTable(path)) as table:
        yield from table.chunks()


class CheckedTable:
    """One table file, open for one pass."""

    def __init__(self, path: Path) -> None:
        """Open the file and find its blocks. Raises FormatError that names it, OSError."""
        self.path = path
        self._file = open_plain(path)
        self._first_block: bytes | None = None
        try:
            self.size_bytes = os.fstat(self._file.fileno()).st_size
            with _naming(path):
                self._footer, self._sizes = self._find_blocks()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def chunks(self) -> Iterator[bytes]:
        """Yield all bytes of the file in pieces of whole, verified blocks. Raises FormatError, OSError."""
        with _naming(self.path):
            self._file.seek(0)
            begin = 0
            for sizes in _portions(self._sizes):
                chunk = self._read(sum(sizes) + len(sizes) * TRAILER_BYTES)
                _check_blocks(chunk, begin, sizes)
                if self._first_block is None:
                    self._first_block = chunk[: sizes[0] + TRAILER_BYTES]
                yield chunk
                begin += len(chunk)
            if self._read(FOOTER_BYTES) != self._footer or self._file.read(1):
                raise _Damage("its footer changed while it was read")
            yield self._footer

    def first_row(self) -> tuple[bytes, bytes]:
        """Return key and value of the first row. All ``chunks`` must have been read before. Raises FormatError."""
        with _naming(self.path):
            block = _content(self._first_block or b"")
            shared, at = read_number(block, 0)
            key_bytes, at = read_number(block, at)
            value_bytes, at = read_number(block, at)
            if shared or at + key_bytes + value_bytes > len(block):
                raise _Damage("its first row is cut off")
            return block[at : at + key_bytes - SUFFIX_BYTES], block[at + key_bytes : at + key_bytes + value_bytes]

    def _find_blocks(self) -> tuple[bytes, list[int]]:
        """Return the footer and the sizes of all blocks, which lie one after the other up to the footer."""
        footer_at = self.size_bytes - FOOTER_BYTES
        if footer_at < 0:
            raise _Damage(f"it has {self.size_bytes} bytes, which is less than the footer of a table")
        self._file.seek(footer_at)
        footer = self._read(FOOTER_BYTES)
        version, magic = FOOTER_END.unpack_from(footer, FOOTER_BYTES - FOOTER_END.size)
        if magic != MAGIC or version != TABLE_FORMAT_VERSION or footer[0] != XXH3:
            raise _Damage("it does not end with the footer of a table")
        meta, at = read_handle(footer, 1)
        index, at = read_handle(footer, at)
        if footer[1 : -FOOTER_END.size] != b"".join(map(encode_number, (*meta, *index))).ljust(
            FOOTER_BYTES - FOOTER_END.size - 1, b"\0"
        ):
            raise _Damage("its footer is not in the only valid form")
        sizes, end = _data_blocks(self._block(index))
        others = [read_handle(value, 0)[0] for value in _values(self._block(meta))]
        for begin, size in sorted([*others, meta, index]):
            if begin != end:
                raise _Damage(f"no block begins at {end}")
            sizes.append(size)
            end += size + TRAILER_BYTES
        if end != footer_at:
            raise _Damage(f"its blocks end at {end}, but its footer begins at {footer_at}")
        return footer, sizes

    def _block(self, handle: BlockHandle) -> bytes:
        """Return a block, decompressed, that is read out of order."""
        begin, size = handle
        if begin + size + TRAILER_BYTES > self.size_bytes:
            raise _Damage("it is too short for its blocks")
        self._file.seek(begin)
        stored = self._read(size + TRAILER_BYTES)
        _check_blocks(stored, begin, [size])
        return _content(stored)

    def _read(self, size: int) -> bytes:
        content = self._file.read(size)
        while len(content) < size and (more := self._file.read(size - len(content))):
            content += more
        if len(content) < size:
            raise _Damage("it is too short")
        return content


def _portions(sizes: list[int]) -> Iterator[list[int]]:
    """Yield the sizes of blocks in portions of about CHUNK_BYTES. The last block of a portion may be larger."""
    some: list[int] = []
    total = 0
    for size in sizes:
        some.append(size)
        total += size
        if total >= CHUNK_BYTES:
            yield some
            some, total = [], 0
    if some:
        yield some


def _check_blocks(stored: bytes, begin: int, sizes: list[int]) -> None:
    """Raise _Damage if one of the blocks that make up ``stored`` does not match its checksum."""
    content, digest, trailer = memoryview(stored), xxh3_64_intdigest, TRAILER.unpack_from
    at = 0
    for size in sizes:
        end = at + size
        kind, checksum = trailer(stored, end)
        if (digest(content[at:end]) ^ kind * LAST_BYTE) & 0xFFFFFFFF != checksum:
            raise _Damage(f"the checksum of the block at {begin + at} is wrong")
        at = end + TRAILER_BYTES


def _content(stored: bytes) -> bytes:
    """Return the content of a block, decompressed; ``stored`` includes its trailer."""
    if len(stored) < TRAILER_BYTES:
        raise _Damage("a block is missing")
    kind, block = stored[-TRAILER_BYTES], stored[:-TRAILER_BYTES]
    if kind == PLAIN:
        return block
    size, at = read_number(block, 0)
    if size > MAX_BLOCK_BYTES:
        raise _Damage(f"a block declares too many bytes: {size}")
    if kind in (LZ4, LZ4HC):
        content = _unpack_lz4(block, at)
    elif kind == ZSTD:
        content = _unpack_zstd(block[at:], size)
    else:
        raise _Damage(f"a block has the unknown compression type {kind}")
    if len(content) != size:
        raise _Damage("a block does not have the size that it declares")
    return content


def _unpack_lz4(block: bytes, at: int) -> bytes:
    """Decompress a block, see https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md."""
    content, end = bytearray(), len(block)
    while at < end:
        token = block[at]
        at += 1
        size = token >> 4
        if size == _LZ4_MORE:
            size, at = _lz4_size(block, at)
        content += block[at : at + size]
        at += size
        if at >= end:
            break
        back = block[at] | block[at + 1] << 8
        at += 2
        size = token & _LZ4_MORE
        if size == _LZ4_MORE:
            size, at = _lz4_size(block, at)
        size += 4
        begin = len(content) - back
        if begin < 0 or not back:
            raise _Damage("a block cannot be decompressed")
        if back >= size:
            content += content[begin : begin + size]
        else:  # the repeated bytes overlap themselves
            content += (content[begin:] * (size // back + 1))[:size]
    return bytes(content)


def _lz4_size(block: bytes, at: int) -> tuple[int, int]:
    """Return a size of more than four bits, and where it ends."""
    size = _LZ4_MORE
    while block[at] == _LZ4_MOST:
        size += _LZ4_MOST
        at += 1
    return size + block[at], at + 1


def _unpack_zstd(block: bytes, size: int) -> bytes:
    import pyarrow as pa  # noqa: PLC0415 - see the module

    try:
        content: bytes = pa.Codec("zstd").decompress(block, size, asbytes=True)
    except (OSError, pa.ArrowException) as problem:
        raise _Damage(f"a block cannot be decompressed: {problem}") from problem
    return content


def _data_blocks(index: bytes) -> tuple[list[int], int]:
    """Return the sizes of all data blocks, which are first in the file, and where they end.

    Entries of the index share nothing, and their values have no sizes. A check spends most of its time in this loop, so
    it reads numbers in place.
    """
    at, end = 0, _entries_end(index)
    sizes = []
    expected = 0
    while at < end:
        if index[at]:
            raise _Damage("the index does not have exactly one entry in each run")
        key_bytes = index[at + 1]
        at += 2
        if key_bytes >= MORE:
            key_bytes, at = read_number(index, at - 1)
        at += key_bytes
        begin = index[at] & 0x7F
        shift = 7
        while index[at] >= MORE:
            at += 1
            begin |= (index[at] & 0x7F) << shift
            shift += 7
        if begin != expected:
            raise _Damage(f"no block begins at {expected}")
        size = index[at + 1]
        at += 2
        if size >= MORE:
            size, at = read_number(index, at - 1)
        sizes.append(size)
        expected += size + TRAILER_BYTES
    if at != end:
        raise _Damage("the index is cut off")
    return sizes, expected


def _values(block: bytes) -> Iterator[bytes]:
    """Yield the values of a block's entries."""
    at, end = 0, _entries_end(block)
    while at < end:
        _, at = read_number(block, at)
        key_bytes, at = read_number(block, at)
        value_bytes, at = read_number(block, at)
        at += key_bytes + value_bytes
        if at > end:
            raise _Damage("a block is cut off")
        yield block[at - value_bytes : at]


def _entries_end(block: bytes) -> int:
    """Return where the entries of a block end and its array of runs begins."""
    end = len(block) - 4 * (1 + int.from_bytes(block[-4:], "little"))
    if end < 0:
        raise _Damage("a block has no entries")
    return end


class _Damage(Exception):  # noqa: N818 - a fact on its way to a FormatError
    pass


class _naming:  # noqa: N801 - used as a function
    """Turn damage found in a file into a FormatError that names the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(problem, (_Damage, IndexError)):  # an index outside of a block: a number in the block is wrong
            why = str(problem) if isinstance(problem, _Damage) else "a block is cut off"
            raise FormatError(f"{self._path} is damaged: {why}.") from problem
