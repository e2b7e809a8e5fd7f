"""Rows that one partition has to process: in memory if they are few, otherwise on local disk, by ranges of their hash.

However many keys a batch has, one range of them is processed at a time. All rows of a key are in one range.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from pyspark_ckpt.operators.declarations.operator import HASH
from pyspark_ckpt.state_store.errors import InternalError, StorageError

RANGES = 64
_HASH_BITS = 32
_RANGE_BITS = RANGES.bit_length() - 1


class RowBuffer:
    """Takes rows, and returns them in the order of their arrival, by ranges of their hash if there are many."""

    def __init__(self, schema: pa.Schema, limit_bytes: int, folder: Path) -> None:
        """Keep up to ``limit_bytes`` of rows in memory, and others in files below the new ``folder``.

        The column HASH of ``schema`` decides the range of a row. Raises InternalError (no such column).
        """
        if HASH not in schema.names:
            raise InternalError(f"Rows kept by ranges of their hash must have a column {HASH!r}, got {schema.names}.")
        self._schema = schema
        self._limit_bytes = limit_bytes
        self._folder = folder
        self._batches: list[pa.RecordBatch] = []
        self.held_bytes = 0
        """Of the rows that are in memory."""
        self._files: dict[int, pa.RecordBatchStreamWriter] = {}
        self._sealed: dict[int, _SealedFile] = {}
        self.count = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add some rows."""
        self.count += len(rows)
        self._batches.append(rows)
        self.held_bytes += rows.nbytes
        if self.held_bytes > self._limit_bytes:
            self.spill()

    @property
    def is_spilled(self) -> bool:
        """Whether rows are on disk."""
        return bool(self._files)

    def all(self) -> pa.Table:
        """Return all rows, which must be in memory. No rows may be added afterwards."""
        return pa.Table.from_batches(self._batches, self._schema)

    def seal(self) -> None:
        """Move all rows to disk. No rows may be added afterwards."""
        self.spill()
        self._close_files()

    def take(self, number: int) -> pa.Table:
        """Return the rows of one range, and remove them."""
        if number not in self._files:
            return self._schema.empty_table()
        path = self._path(number)
        try:
            with pa.memory_map(str(path)) as source:
                content = source.read_buffer()
        except OSError as problem:
            raise StorageError(f"Could not read {path}, which holds rows of this batch: {problem}.") from problem
        if xxhash.xxh64_digest(content) != self._sealed[number].digest():
            raise StorageError(
                f"{path}, which holds rows of this batch, is damaged.",
                hint="The task is tried again. If this happens again, check the disk of the executor's local folder.",
            )
        table = pa.ipc.open_stream(content).read_all()
        path.unlink()
        return table

    def close(self) -> None:
        """Remove the files."""
        self._close_files()
        if self.is_spilled:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _close_files(self) -> None:
        """Complete the files; a second call does nothing."""
        for number, file in self._sealed.items():
            if not file.closed:
                self._files[number].close()
                file.close()

    def spill(self) -> None:
        """Move the rows that are in memory to disk."""
        if not self._batches:
            return
        rows = pa.Table.from_batches(self._batches, self._schema).combine_chunks()
        hashes = rows.column(HASH).to_numpy().astype(np.uint32)
        number_of = (hashes >> np.uint32(_HASH_BITS - _RANGE_BITS)).astype(np.int64)
        order = np.argsort(number_of, kind="stable")
        ends = np.cumsum(np.bincount(number_of, minlength=RANGES)).tolist()
        ordered = rows.take(pa.array(order))
        begin = 0
        for number, end in enumerate(ends):
            if end > begin:
                self._writer(number).write_table(ordered.slice(begin, end - begin))
            begin = end
        self._batches, self.held_bytes = [], 0

    def _writer(self, number: int) -> pa.RecordBatchStreamWriter:
        if number not in self._files:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            file = _SealedFile(self._path(number))
            self._files[number] = pa.ipc.new_stream(file, self._schema)
            self._sealed[number] = file
        return self._files[number]

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.arrow"


class _SealedFile:
    """A new file that computes the checksum of what is written to it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._digest = xxhash.xxh64()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, content: bytes) -> int:
        self._digest.update(content)
        return self._file.write(content)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def tell(self) -> int:
        return self._file.tell()

    def digest(self) -> bytes:
        return self._digest.digest()


def ranges(buffers: Sequence[RowBuffer]) -> Iterator[tuple[list[pa.Table], bytes | None]]:
    """Yield for each range in order the rows of each buffer, and the first hash after the range; None for the last."""
    if not any(buffer.is_spilled for buffer in buffers):
        yield [buffer.all() for buffer in buffers], None
        return
    for buffer in buffers:
        buffer.seal()
    for number in range(RANGES):
        tables = [buffer.take(number) for buffer in buffers]
        if any(len(table) for table in tables):
            last = number == RANGES - 1
            yield tables, None if last else (number + 1 << _HASH_BITS - _RANGE_BITS).to_bytes(4, "big")
