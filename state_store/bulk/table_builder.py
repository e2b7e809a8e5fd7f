"""Writes a table file of RocksDB from many rows at once: RocksDB's own writer takes one call for each.

Keys of such a file are all of one size, and values are, too. No key shares bytes with the one before it, so all entries
have one size, and lie side by side; compression takes out what they have in common.

If hardly two rows have the same prefix, the filter is of prefixes alone, and RocksDB is told so: it answers for whole
keys as well as a filter of both would, in half the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_ckpt.state_store.bulk.blocks import SUFFIX_BYTES, VALUE
from pyspark_ckpt.state_store.bulk.filters import PREFIX_BYTES, filter_of, key_hashes, prefix_hashes
from pyspark_ckpt.state_store.bulk.order import words_of
from pyspark_ckpt.state_store.bulk.packed import WIDEST, Bytes
from pyspark_ckpt.state_store.bulk.rows import RowColumns
from pyspark_ckpt.state_store.bulk.sorted_table import (
    BLOCK_BYTES,
    LZ4,
    PLAIN,
    TRAILER,
    ZSTD,
    Handle,
    checksum_of,
)
from pyspark_ckpt.state_store.bulk.table_parts import (
    block_of,
    encoded,
    footer_of,
    index_of,
    properties_like,
    runs_of,
    varint,
)
from pyspark_ckpt.state_store.bulk.xxh3 import LENGTHS, Hashes
from pyspark_ckpt.state_store.database import Tuning
from pyspark_ckpt.state_store.errors import InternalError, StorageError

LEAST_BYTES = 1 << 18
"""Rows wait until there are so many bytes of them: less is not worth the calls."""
RUN_ROWS = 16
"""Of a block: a search in it goes by the first ones of its runs."""
LEAST_SAVING = 8
"""A block is stored compressed if that saves one byte in so many."""
ZSTD_LEVEL = 3
"""RocksDB's default."""
REPEATS = 64
"""If one row in so many has the prefix of the one before, or fewer have, the filter is of prefixes alone."""
BLOCK_MEMORY_BYTES = 300
"""For where a block is, and its first and last key."""
_FILTER = b"fullfilter.rocksdb.BuiltinBloomFilter"
_PROPERTIES = b"rocksdb.properties"
_SUFFIX = np.frombuffer(VALUE.to_bytes(SUFFIX_BYTES, "little"), np.uint8)
_BEHIND_PREFIX = np.uint64(8 * (8 - PREFIX_BYTES))
_KINDS = {"lz4": LZ4, "zstd": ZSTD, "none": PLAIN}
_CODECS = {LZ4: pa.Codec("lz4_raw"), ZSTD: pa.Codec("zstd", ZSTD_LEVEL)}

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Shape:
    """What all rows of a file have in common: sizes of keys and values; ``by_prefix``: what its filter is of."""

    key_bytes: int
    value_bytes: int
    by_prefix: bool

    @classmethod
    def of(cls, rows: RowColumns) -> Shape | None:
        """That of a file of these rows, of which there is one at least; None if there cannot be one."""
        keys, values = rows.keys.widths(), rows.values.widths()
        if len(keys) > 1 or len(values) > 1 or not PREFIX_BYTES <= keys[0] <= WIDEST or values[0] > WIDEST:
            return None
        prefixes = words_of(rows.keys, 0) >> _BEHIND_PREFIX
        by_prefix = int((prefixes[1:] == prefixes[:-1]).sum()) * REPEATS <= len(rows)
        return cls(keys[0], values[0], by_prefix) if by_prefix or keys[0] in LENGTHS else None

    def holds(self, other: Shape | None) -> bool:
        """Whether rows of the other shape may be in a file of this one."""
        return other == self or (not self.by_prefix and other == replace(self, by_prefix=True))


class TableBuilder:
    """Writes one table file of rows of a shape, whose keys rise.

    It is not synced to the disk: RocksDB does that when the file is ingested.
    """

    def __init__(self, path: Path, shape: Shape, tuning: Tuning) -> None:
        """Begin the new file ``path``. Raises StorageError."""
        self.shape, self._path, self._tuning = shape, path, tuning
        header = b"\0" + varint(shape.key_bytes + SUFFIX_BYTES) + varint(shape.value_bytes)
        self._header = np.frombuffer(header, np.uint8)
        self._row_bytes = len(header) + shape.key_bytes + SUFFIX_BYTES + shape.value_bytes
        self._block_rows = max(1, BLOCK_BYTES // self._row_bytes)
        self._waiting: list[Bytes] = []
        self._waiting_rows = self._rows = 0
        self._hashes: list[Hashes] = []
        self._last_key = b""
        self._blocks: list[Handle] = []
        self._first: list[Bytes] = []
        self._last: list[Bytes] = []
        self.size_bytes = 0
        """Of the file so far."""
        self._write(b"", "xb")

    @property
    def memory_bytes(self) -> int:
        """About what is held of the file."""
        hashes_bytes = sum(each.nbytes for each in self._hashes)
        return hashes_bytes + self._waiting_rows * self._row_bytes + len(self._blocks) * BLOCK_MEMORY_BYTES

    def write(self, rows: RowColumns) -> None:
        """Write rows that the shape holds. Raises StorageError, InternalError for rows out of order."""
        size = self.shape.key_bytes
        keys, words = rows.keys.matrix(size), words_of(rows.keys, 0)
        begins_anew = keys[0, :PREFIX_BYTES].tobytes() != self._last_key[:PREFIX_BYTES]
        self._require_order(keys, words)
        begin, end = len(self._header), len(self._header) + size
        entries = np.empty((len(rows), self._row_bytes), np.uint8)
        entries[:, :begin] = self._header
        entries[:, begin:end] = keys
        entries[:, end : end + SUFFIX_BYTES] = _SUFFIX
        entries[:, end + SUFFIX_BYTES :] = rows.values.matrix(self.shape.value_bytes)
        prefixes = prefix_hashes(words.byteswap())
        self._hashes.append(prefixes[np.concatenate(([begins_anew], prefixes[1:] != prefixes[:-1]))])
        if not self.shape.by_prefix:
            self._hashes.append(key_hashes(keys))
        self._waiting.append(entries)
        self._waiting_rows += len(rows)
        self._rows += len(rows)
        if self._waiting_rows * self._row_bytes >= LEAST_BYTES:
            self._write_blocks(self._waiting_rows // self._block_rows)

    def finish(self) -> None:
        """Make the file complete. Raises StorageError."""
        self._write_blocks(self._waiting_rows // self._block_rows)
        if self._waiting_rows:
            self._block_rows = self._waiting_rows
            self._write_blocks(1)
        data_bytes = self.size_bytes
        bloom, index = filter_of(self._hashes), self._index()
        (bloom_at,) = self._append([(bloom, PLAIN)])
        (index_at,) = self._append([self._compressed(index)])
        said = {
            "block.based.table.whole.key.filtering": b"0" if self.shape.by_prefix else b"1",
            "data.size": varint(data_bytes),
            "filter.size": varint(len(bloom)),
            "index.size": varint(len(index) + TRAILER.size),
            "num.data.blocks": varint(len(self._blocks)),
            "num.entries": varint(self._rows),
            "num.filter_entries": varint(sum(map(len, self._hashes))),
            "raw.key.size": varint(self._rows * (self.shape.key_bytes + SUFFIX_BYTES)),
            "raw.value.size": varint(self._rows * self.shape.value_bytes),
            "tail.start.offset": varint(data_bytes),
        }
        properties = {**properties_like(self._tuning), **{f"rocksdb.{name}".encode(): said[name] for name in said}}
        (properties_at,) = self._append([(block_of(sorted(properties.items()), len(properties)), PLAIN)])
        meta = block_of([(_FILTER, encoded(bloom_at)), (_PROPERTIES, encoded(properties_at))], 1)
        (meta_at,) = self._append([(meta, PLAIN)])
        self._write(footer_of(meta_at, index_at))

    def _index(self) -> bytes:
        at, size = np.array(self._blocks, np.int64).T
        return index_of(np.concatenate(self._first), np.concatenate(self._last), at, size)

    def _require_order(self, keys: Bytes, words: Words) -> None:
        """Raise InternalError if the keys do not rise. ``words``: their beginnings, which compare as they do."""
        is_right = words[1:] > words[:-1]
        tied = np.flatnonzero(words[1:] == words[:-1])
        if len(tied):
            differ = keys[tied] != keys[tied + 1]
            at = differ.argmax(axis=1)
            is_right[tied] = keys[tied, at] < keys[tied + 1, at]
        first = keys[0].tobytes()
        if not is_right.all() or first <= self._last_key:
            wrong = keys[int(is_right.argmin()) + 1].tobytes() if not is_right.all() else first
            raise InternalError(f"Rows for the table file {self._path} are not in the order of keys at {wrong.hex()}.")
        self._last_key = keys[-1].tobytes()

    def _write_blocks(self, count: int) -> None:
        """Write the first rows that wait, as so many full blocks."""
        if not count:
            return
        entries = np.concatenate(self._waiting)
        rows = count * self._block_rows
        self._waiting, self._waiting_rows = [entries[rows:].copy()], len(entries) - rows
        size = self._block_rows * self._row_bytes
        runs = np.frombuffer(runs_of(range(0, size, RUN_ROWS * self._row_bytes)), np.uint8)
        blocks = np.empty((count, size + len(runs)), np.uint8)
        blocks[:, :size] = entries[:rows].reshape(count, size)
        blocks[:, size:] = runs
        begin, end = len(self._header), len(self._header) + self.shape.key_bytes
        last_row = size - self._row_bytes
        self._first.append(blocks[:, begin:end].copy())
        self._last.append(blocks[:, last_row + begin : last_row + end].copy())
        content, width = blocks.data.cast("B"), size + len(runs)
        stored = [self._compressed(content[at : at + width]) for at in range(0, len(content), width)]
        self._blocks += self._append(stored)

    def _compressed(self, block: bytes | memoryview) -> tuple[bytes | memoryview, int]:
        """A block as it is stored, and how it is compressed."""
        kind = _KINDS[self._tuning.compression]
        if kind == PLAIN:
            return block, PLAIN
        smaller = varint(len(block)) + _CODECS[kind].compress(block, asbytes=True)
        return (smaller, kind) if len(smaller) < len(block) - len(block) // LEAST_SAVING else (block, PLAIN)

    def _append(self, blocks: Sequence[tuple[bytes | memoryview, int]]) -> list[Handle]:
        """Write blocks, each with its end; returns where they are."""
        places: list[Handle] = []
        parts: list[bytes | memoryview] = []
        at = self.size_bytes
        for block, kind in blocks:
            places.append((at, len(block)))
            parts += [block, TRAILER.pack(kind, checksum_of(block, kind))]
            at += len(block) + TRAILER.size
        self._write(b"".join(parts))
        return places

    def _write(self, content: bytes, mode: str = "ab") -> None:
        try:
            with self._path.open(mode, buffering=0) as file:
                written = file.write(content)
        except OSError as problem:
            raise StorageError(f"Could not write the table file {self._path}: {problem}") from problem
        if written != len(content):
            raise StorageError(
                f"Could not write the table file {self._path}: only {written} of {len(content)} bytes fit."
            )
        self.size_bytes += len(content)
