"""A database of rows that come in any order: one of Spark's RocksDB provider, or a new one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import rocksdict

from pyspark_ckpt.state_store.chunks import count_row_bytes, take_portion
from pyspark_ckpt.state_store.database.failures import failures
from pyspark_ckpt.state_store.database.tables import TableFile, list_table_files
from pyspark_ckpt.state_store.database.tuning import BLOOM_BITS_PER_KEY, TABLE_FORMAT_VERSION

PORTION_ROWS = 8192
PORTION_BYTES = 4 << 20
BATCH_ROWS = 4096
MEMTABLE_BYTES = 16 << 20


class ScratchDatabase:
    """Rows by their raw keys, in a folder that is deleted afterwards. It is not durable.

    It compacts nothing by itself, so that its table files stay while they are read. Every Spark release's RocksDB opens
    it.
    """

    def __init__(self, folder: Path) -> None:
        """Open the database in ``folder``, or create it. Raises StorageError, FormatError (it is damaged)."""
        self.folder = folder
        options = _make_options()
        self._unlogged = rocksdict.WriteOptions()
        self._unlogged.disable_wal = True  # type: ignore[method-assign,assignment]  # a property, typed as a method
        with failures(f"open the database {folder}"):
            self._db = rocksdict.Rdict(str(folder), options, column_families={"default": options})

    def write(self, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write rows in their order; None deletes one. Raises StorageError."""
        waiting = iter(rows)
        with failures(f"write to the database {self.folder}"):
            while some := take_portion(waiting, BATCH_ROWS, PORTION_BYTES, count_row_bytes):
                batch = rocksdict.WriteBatch(raw_mode=True)
                for key, value in some:
                    if value is None:
                        batch.delete(key)
                    else:
                        batch.put(key, value)
                self._db.write(batch, self._unlogged)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a row, None if there is no such row. Raises StorageError, FormatError."""
        with failures(f"read the database {self.folder}"):
            value = self._db.get(key)
        return None if value is None else bytes(value)

    def flush(self) -> None:
        """Write all rows that are in memory into table files. Raises StorageError."""
        with failures(f"write to the database {self.folder}"):
            self._db.flush()

    def seal(self) -> list[str]:
        """Write all rows into as few table files as possible, and return their names. Raises StorageError."""
        with failures(f"compact the database {self.folder}"):
            self._db.flush()
            self._db.compact_range(None, None)
        return [table.name for table in self.table_files()]

    def table_files(self) -> list[TableFile]:
        """Return the table files, as ``list_table_files`` does. Raises StorageError."""
        with failures(f"read the database {self.folder}"):
            return list_table_files(self._db)

    def portions(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield all rows in the order of their keys, in portions. Raises StorageError, FormatError."""
        with failures(f"read the database {self.folder}"):
            last = b""
            rows: Iterator[tuple[bytes, bytes]] = self._db.items()  # type: ignore[assignment]  # raw mode
            while some := take_portion(rows, PORTION_ROWS, PORTION_BYTES, count_row_bytes):
                yield some
                last = some[-1][0] + b"\0"
            # The iterator ends in the same way when it fails.
            behind = self._db.iter()
            behind.seek(last)
            if not behind.valid():
                behind.status()

    def close(self) -> None:
        """Release the database."""
        self._db.close()


def _make_options() -> rocksdict.Options:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(MEMTABLE_BYTES)
    options.set_keep_log_file_num(1)
    options.set_disable_auto_compactions(True)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    tables = rocksdict.BlockBasedOptions()
    tables.set_format_version(TABLE_FORMAT_VERSION)
    tables.set_bloom_filter(BLOOM_BITS_PER_KEY, block_based=False)
    options.set_block_based_table_factory(tables)
    return options
