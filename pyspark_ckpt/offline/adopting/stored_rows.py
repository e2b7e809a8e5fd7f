"""The rows of a database of Spark's RocksDB provider, many at once: from its table files, or with RocksDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.database import TableFile
from pyspark_ckpt.state_store.database.scratch import ScratchDatabase
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.sst.scan import scan_rows
from pyspark_ckpt.state_store.sst.table import SortedTable

RUN_BYTES = 32 << 20
"""About how many bytes of rows are in a portion."""


def read_portions(database: ScratchDatabase) -> Iterator[PackedRows]:
    """Yield all rows in the order of their keys, in portions of about ``RUN_BYTES``.

    Raises StorageError, FormatError, InternalError.
    """
    return PackedRows.join_portions(_read(database), RUN_BYTES)


def _read(database: ScratchDatabase) -> Iterator[PackedRows]:
    database.flush()
    files = database.table_files()
    if _are_readable(database.folder, files):
        yield from scan_rows(database, b"", max((file.last_key for file in files), default=b"") + b"\0")
    else:
        yield from map(PackedRows.of, database.portions())


def _are_readable(folder: Path, files: Sequence[TableFile]) -> bool:
    """Return whether many rows of the table files can be read at once.

    If not, RocksDB reads them row by row, and reports damage.
    """
    for file in files:
        try:
            with closing(SortedTable(folder / file.name, (file.first_key, file.last_key))) as table:
                if not table.is_readable:
                    return False
        except FormatError:
            return False
    return True
