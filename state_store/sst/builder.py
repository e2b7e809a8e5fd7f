"""Writes a RocksDB table file from many rows at once. RocksDB's own writer takes one call for each row.

If prefixes hardly ever repeat, the filter has prefixes only, and the properties of the file tell RocksDB so. Such a
filter takes half the memory, and answers as well for a key whose hash no other key has. Otherwise the filter has whole
keys in addition.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from pyspark_ckpt.state_store.columns.order import Bools, out_of_order
from pyspark_ckpt.state_store.columns.packed import WIDEST, Packed, repeat
from pyspark_ckpt.state_store.columns.rows import RowColumns
from pyspark_ckpt.state_store.columns.writes import Writes
from pyspark_ckpt.state_store.columns.xxh3 import Hashes
from pyspark_ckpt.state_store.database import PREFIX_BYTES, Tuning
from pyspark_ckpt.state_store.errors import InternalError, StorageError
from pyspark_ckpt.state_store.sst.entries import Encoded, encode, join_entries
from pyspark_ckpt.state_store.sst.filters import KEY_BYTES, filter_of, key_hashes, prefix_hashes
from pyspark_ckpt.state_store.sst.layout import (
    LZ4,
    PLAIN,
    SUFFIX_BYTES,
    TRAILER,
    ZSTD,
    Handle,
    checksum_of,
    encode_number,
)
from pyspark_ckpt.state_store.sst.parts import (
    block_of,
    footer_of,
    index_of,
    place_of,
    properties_like,
    runs_of,
)
from pyspark_ckpt.state_store.sst.table import BLOCK_BYTES

MIN_BYTES = 1 << 18
"""Rows are buffered up to this size before they are written: fewer bytes are not worth the calls."""
RUN_ROWS = 16
"""Rows of each run of a block. A search in the block goes by the first rows of its runs."""
MIN_ROWS = 1024
"""RocksDB writes a file whose first portion has fewer rows."""
ROWS_AT_ONCE = 1 << 15
"""Rows of a part that are encoded at a time: encoded rows take several times their bytes."""
MIN_SAVING = 8
"""A block is stored compressed if that saves more than one byte in this number."""
ZSTD_LEVEL = 3
"""RocksDB's default."""
FEW_REPEATS = 512
"""A filter has prefixes only if at most one row in this number has the prefix of the row before it."""
MAX_REPEATS = 64
"""... and while at most one row in this number does so in each later portion."""
MIN_ROWS_A_SIZE = 64
"""Rows for each pair of key size and value size: rows of more sizes are written faster one by one."""
BOUND_BYTES = 120
"""Memory for the first or the last key of a block in addition to its bytes, with half of the block's position."""
_FILTER = b"fullfilter.rocksdb.BuiltinBloomFilter"
_PROPERTIES = b"rocksdb.properties"
_BEHIND_PREFIX = np.uint64(8 * (8 - PREFIX_BYTES))
_KINDS = {"lz4": LZ4, "zstd": ZSTD, "none": PLAIN}
_CODECS = {LZ4: pa.Codec("lz4_raw"), ZSTD: pa.Codec("zstd", ZSTD_LEVEL)}


def can_be_built(rows: RowColumns) -> bool:
    """Return whether a table file of the rows can be built faster than RocksDB writes it. There must be a row."""
    key_bytes, value_bytes = rows.keys.size, rows.values.size
    if not (KEY_BYTES.start <= key_bytes.min() and key_bytes.max() < KEY_BYTES.stop and value_bytes.max() <= WIDEST):
        return False
    return rows.are_of_one_size or len(np.unique(rows.sizes)) * MIN_ROWS_A_SIZE <= len(rows)


def repeats_of(rows: RowColumns) -> int:
    """Return how many rows have the prefix of the row before them."""
    prefixes = rows.keys.first_words >> _BEHIND_PREFIX
    return int((prefixes[1:] == prefixes[:-1]).sum())


def are_built(parts: Sequence[Writes]) -> bool:
    """Return whether a table file of these rows is built here. If not, RocksDB is to write it."""
    return is_built(list(map(_columns_of, parts)))


def is_built(parts: Sequence[RowColumns]) -> bool:
    """Return whether a table file that begins with these rows is built here. If not, RocksDB is to write it."""
    return sum(map(len, parts)) >= MIN_ROWS and all(map(can_be_built, parts))


def begin_table(path: Path, parts: Sequence[RowColumns], tuning: Tuning) -> TableBuilder:
    """Begin the new file ``path`` for rows like these. It writes none of them. Raises StorageError."""
    repeats, rows = sum(map(repeats_of, parts)), sum(map(len, parts))
    return TableBuilder(path, tuning, by_prefix=repeats * FEW_REPEATS <= rows)


def write_columns(path: Path, parts: Sequence[Writes], tuning: Tuning) -> None:
    """Build one table file of rows whose keys rise, part after part. Raises what TableBuilder raises."""
    builder = begin_table(path, list(map(_columns_of, parts)), tuning)
    for part in parts:
        for begin in range(0, len(part), ROWS_AT_ONCE):
            some = part.take(slice(begin, begin + ROWS_AT_ONCE))
            builder.write(_columns_of(some), some.cells.there)
    builder.finish()


def _columns_of(part: Writes) -> RowColumns:
    """Return the rows, with empty values for deleted ones."""
    return RowColumns(part.keys, part.cells.values)


class TableBuilder:
    """Writes one table file of rows whose keys rise, and for which ``can_be_built`` is true.

    The file is not synced to the disk: RocksDB does that when it ingests the file.
    """

    def __init__(self, path: Path, tuning: Tuning, *, by_prefix: bool) -> None:
        """Begin the new file ``path``. ``by_prefix``: whether its filter has prefixes only. Raises StorageError."""
        self._path, self._tuning, self._by_prefix = path, tuning, by_prefix
        self._kind = _KINDS[tuning.compression]
        self._waiting: list[Encoded] = []
        self._waiting_bytes = 0
        self._hashes: list[Hashes] = []
        self._last_key = b""
        self._blocks: list[Handle] = []
        self._first_keys: list[bytes] = []
        self._last_keys: list[bytes] = []
        self._rows = self._deleted = self._filtered = self._key_bytes = self._value_bytes = self._bounds_bytes = 0
        self.size_bytes = 0
        """Bytes of the file so far."""
        self._write(b"", "xb")

    @property
    def memory_bytes(self) -> int:
        """Estimate the memory held for the file."""
        return self._waiting_bytes + self._filtered * 8 + self._bounds_bytes

    def holds(self, rows: RowColumns) -> bool:
        """Return whether the kind of its filter also suits these rows."""
        return not self._by_prefix or repeats_of(rows) * MAX_REPEATS <= len(rows)

    def write(self, rows: RowColumns, there: Bools | None = None) -> None:
        """Write rows. Rows that are not ``there`` delete their keys. Raises StorageError, InternalError (order)."""
        there = np.ones(len(rows), np.bool_) if there is None else there
        begins_anew = rows.keys[0][:PREFIX_BYTES] != self._last_key[:PREFIX_BYTES]
        self._require_order(rows)
        prefixes = prefix_hashes(rows.keys.first_words.byteswap())
        self._add_hashes(prefixes[np.concatenate(([begins_anew], prefixes[1:] != prefixes[:-1]))])
        if not self._by_prefix:
            for _, some in rows.by_size():
                self._add_hashes(key_hashes(some.keys.matrix(int(some.keys.size[0]))))
        entries = encode(rows, there)
        self._waiting.append(entries)
        self._waiting_bytes += len(entries.data)
        self._rows += len(rows)
        self._deleted += int((~there).sum())
        self._key_bytes += int(rows.keys.size.sum())
        self._value_bytes += int(rows.values.size.sum())
        if self._waiting_bytes >= MIN_BYTES:
            self._write_blocks(is_last=False)

    def finish(self) -> None:
        """Complete the file. Raises StorageError."""
        self._write_blocks(is_last=True)
        data_bytes = self.size_bytes
        bloom, index = filter_of(self._hashes), index_of(self._first_keys, self._last_keys, self._blocks)
        (bloom_at,) = self._append([bloom], PLAIN)
        (index_at,) = self._append([index], self._kind)
        said = {
            "block.based.table.whole.key.filtering": b"0" if self._by_prefix else b"1",
            "data.size": encode_number(data_bytes),
            "deleted.keys": encode_number(self._deleted),
            "filter.size": encode_number(len(bloom)),
            "index.size": encode_number(len(index) + TRAILER.size),
            "num.data.blocks": encode_number(len(self._blocks)),
            "num.entries": encode_number(self._rows),
            "num.filter_entries": encode_number(self._filtered),
            "raw.key.size": encode_number(self._key_bytes + self._rows * SUFFIX_BYTES),
            "raw.value.size": encode_number(self._value_bytes),
            "tail.start.offset": encode_number(data_bytes),
        }
        properties = {**properties_like(self._tuning), **{f"rocksdb.{name}".encode(): said[name] for name in said}}
        (properties_at,) = self._append([block_of(sorted(properties.items()), len(properties))], PLAIN)
        meta = block_of([(_FILTER, place_of(bloom_at)), (_PROPERTIES, place_of(properties_at))], 1)
        (meta_at,) = self._append([meta], PLAIN)
        self._write(footer_of(meta_at, index_at))

    def _add_hashes(self, hashes: Hashes) -> None:
        self._hashes.append(hashes)
        self._filtered += len(hashes)

    def _require_order(self, rows: RowColumns) -> None:
        """Raise InternalError if the keys do not rise."""
        wrong = 0 if rows.keys[0] <= self._last_key else out_of_order(rows.keys)
        if wrong is not None:
            raise InternalError(
                f"Rows for the table file {self._path} are not in the order of keys at {rows.keys[wrong].hex()}."
            )
        self._last_key = rows.keys[len(rows) - 1]

    def _write_blocks(self, *, is_last: bool) -> None:
        """Write the buffered rows. Unless ``is_last``, the rows of a last block that may grow stay buffered."""
        if not self._waiting:
            return
        entries = join_entries(self._waiting)
        if entries.are_alike:
            entries = self._write_alike(entries)
        if is_last or not entries.are_alike:
            entries = self._write_uneven(entries, is_last=is_last)
        self._waiting = [entries] if len(entries) else []
        self._waiting_bytes = len(entries.data)

    def _write_alike(self, entries: Encoded) -> Encoded:
        """Write full blocks of entries that all have one size. Returns the entries that are left."""
        size = int(entries.sizes[0])
        rows = max(1, BLOCK_BYTES // size)
        count, width = len(entries) // rows, rows * size
        if not count:
            return entries
        tail = runs_of(range(0, width, RUN_ROWS * size))
        blocks = np.empty((count, width + len(tail)), np.uint8)
        blocks[:, :width] = entries.data[: count * width].reshape(count, width)
        blocks[:, width:] = np.frombuffer(tail, np.uint8)
        key_at, key_bytes = int(entries.key_at[0]), int(entries.key_sizes[0])
        block_at = np.arange(count) * blocks.shape[1]
        self._add_bounds(
            *(
                Packed(blocks.reshape(-1), block_at + at, repeat(key_bytes, count))
                for at in (key_at, width - size + key_at)
            )
        )
        content = blocks.data.cast("B")
        cuts = pairwise(range(0, len(content) + 1, blocks.shape[1]))
        self._blocks += self._append([content[begin:end] for begin, end in cuts], self._kind)
        return entries.behind(count * rows, count * width)

    def _write_uneven(self, entries: Encoded, *, is_last: bool) -> Encoded:
        """Write blocks of entries of any sizes. Returns the entries that are left.

        Entries that begin within the same 4 KB make up one block.
        """
        ends = np.cumsum(entries.sizes)
        begins = ends - entries.sizes
        firsts = np.flatnonzero(np.diff(begins // BLOCK_BYTES, prepend=-1))
        if not is_last:
            firsts, behind = firsts[:-1], int(firsts[-1])
        else:
            behind = len(entries)
        if not len(firsts):
            return entries
        lasts = np.append(firsts[1:], behind) - 1
        counts = (lasts - firsts) // RUN_ROWS + 1
        nth = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        run_begins = begins[np.repeat(firsts, counts) + nth * RUN_ROWS] - np.repeat(begins[firsts], counts)
        runs, content = run_begins.astype("<u4").tobytes(), entries.data.data
        key_at = begins + entries.key_at
        self._add_bounds(*(Packed(entries.data, key_at[some], entries.key_sizes[some]) for some in (firsts, lasts)))
        whole, at = [], 0
        for begin, end, count in zip(begins[firsts].tolist(), ends[lasts].tolist(), counts.tolist(), strict=True):
            tail = runs[4 * at : 4 * (at + count)] + count.to_bytes(4, "little")
            whole.append(b"".join((content[begin:end], tail)))
            at += count
        self._blocks += self._append(whole, self._kind)
        return entries.behind(behind, int(ends[behind - 1]))

    def _add_bounds(self, first: Packed, last: Packed) -> None:
        """Keep the first and last keys of blocks."""
        self._first_keys += first.strings()
        self._last_keys += last.strings()
        self._bounds_bytes += int(first.size.sum()) + int(last.size.sum()) + 2 * len(first) * BOUND_BYTES

    def _append(self, blocks: Sequence[bytes | memoryview], kind: int) -> list[Handle]:
        """Write blocks with their trailers, compressed if that saves enough. Returns where the blocks are."""
        places: list[Handle] = []
        parts: list[bytes | memoryview] = []
        at = self.size_bytes
        for block in blocks:
            stored, stored_kind = block, PLAIN
            if kind != PLAIN:
                smaller = encode_number(len(block)) + _CODECS[kind].compress(block, asbytes=True)
                if len(smaller) < len(block) - len(block) // MIN_SAVING:
                    stored, stored_kind = smaller, kind
            places.append((at, len(stored)))
            parts += (stored, TRAILER.pack(stored_kind, checksum_of(stored, stored_kind)))
            at += len(stored) + TRAILER.size
        self._write(b"".join(parts))
        return places

    def _write(self, content: bytes, mode: str = "r+b") -> None:
        try:
            with self._path.open(mode) as file:
                file.seek(0, os.SEEK_END)
                file.write(content)
        except OSError as problem:
            raise StorageError(f"Could not write the table file {self._path}: {problem}") from problem
        self.size_bytes += len(content)
