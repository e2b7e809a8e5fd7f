"""RocksDB as this engine uses it. No other package imports rocksdict.

Databases receive rows only from ingested files. The memtable is always empty and there is no write-ahead log to replay,
so a checkpoint consists of hard links, and a reader in another process needs only the manifest. The table format is
pinned to one that Spark's own rocksdbjni reads, whatever format a newer rocksdict prefers.
"""

from pyspark_ckpt.state_store.database.failures import failures
from pyspark_ckpt.state_store.database.primary import Database, drop_unreferenced, keep_only
from pyspark_ckpt.state_store.database.tables import TableCount, TableFile, TableWriter, write_table_file
from pyspark_ckpt.state_store.database.tuning import (
    BACKGROUND_NICE,
    BLOOM_BITS_PER_KEY,
    LEVEL0_COMPACTION_FILES,
    PREFIX_BYTES,
    TABLE_FORMAT_VERSION,
    Tuning,
)
from pyspark_ckpt.state_store.database.view import Cursor, Reader

__all__ = [
    "BACKGROUND_NICE",
    "BLOOM_BITS_PER_KEY",
    "LEVEL0_COMPACTION_FILES",
    "PREFIX_BYTES",
    "TABLE_FORMAT_VERSION",
    "Cursor",
    "Database",
    "Reader",
    "TableCount",
    "TableFile",
    "TableWriter",
    "Tuning",
    "drop_unreferenced",
    "failures",
    "keep_only",
    "write_table_file",
]
