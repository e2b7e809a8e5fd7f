"""RocksDB's settings, shared by writers and readers of databases."""

from __future__ import annotations

import copy
import os
from contextlib import suppress
from pathlib import Path

import rocksdict

TABLE_FORMAT_VERSION = 5
BLOOM_BITS_PER_KEY = 10
PREFIX_BYTES = 6
LEVEL0_COMPACTION_FILES = 8
COMPACTION_THREADS = 2
BACKGROUND_NICE = 10
"""Nice value of work that runs after a commit. On a saturated machine it gets about a tenth of a batch's CPU. RocksDB's
own way to lower its threads leaves them about a seventieth."""
TIER_GROWTH_PERCENT = 50
"""A file is merged with all newer ones if it is at most this many percent larger than their sum."""
MAX_HIDDEN_PERCENT = 50
"""All files are merged if the newer ones together have at least this percentage of the bytes of the oldest one."""
TIER_FILE_BYTES = 32 << 20
"""Size of the files that a merge writes: several are uploaded and downloaded in parallel."""

_MIB = 1 << 20
_THREADS = Path("/proc/self/task")
_COMPACTION_THREAD = b"rocksdb:low"
_COMPRESSION = {
    "lz4": rocksdict.DBCompressionType.lz4,
    "zstd": rocksdict.DBCompressionType.zstd,
    "none": rocksdict.DBCompressionType.none,
}


class Tuning:
    """RocksDB settings that all databases of the process share: one block cache, one thread pool."""

    def __init__(self, cache_bytes: int, compression: str = "lz4", *, compacts: bool = True) -> None:
        """Make a cache of ``cache_bytes`` for all databases together.

        ``compacts``: whether databases compact in the background. If not, their files change only by writes and by
        explicit compaction.
        """
        self.cache = rocksdict.Cache(cache_bytes)
        self.compression = compression
        self._compacts = compacts
        self._env = rocksdict.Env()
        self._env.set_low_priority_background_threads(COMPACTION_THREADS)
        self._env.set_high_priority_background_threads(1)
        self._nice_threads: set[int] = set()

    def lower_compaction(self) -> None:
        """Lower the priority of the threads that compact live databases, so that batches go first. Linux only.

        The threads start with the first compaction, so this is called after anything that may cause one.
        """
        if not self._compacts or len(self._nice_threads) >= COMPACTION_THREADS:
            return
        with suppress(OSError):  # not Linux, or a thread has ended: the next call finds the others
            for path in _THREADS.iterdir():
                if (path / "comm").read_bytes().startswith(_COMPACTION_THREAD):
                    thread = int(path.name)
                    nice = max(BACKGROUND_NICE, os.getpriority(os.PRIO_PROCESS, thread))
                    os.setpriority(os.PRIO_PROCESS, thread, nice)
                    self._nice_threads.add(thread)

    def using(self, compression: str) -> Tuning:
        """Return these settings with another compression. Cache and threads are shared."""
        other = copy.copy(self)
        other.compression = compression
        return other

    def get_used_bytes(self) -> int:
        """Return the memory that the block cache holds now, index and filter blocks included."""
        return self.cache.get_usage()

    def options(self) -> rocksdict.Options:
        """Return the options of a database or a table file writer."""
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_env(self._env)
        options.set_block_based_table_factory(self._tables())
        options.set_compression_type(_COMPRESSION[self.compression]())
        # Bloom filters also cover the prefix `state · hash`: a scan of one key's rows skips most table files.
        options.set_prefix_extractor(rocksdict.SliceTransform.create_fixed_prefix(PREFIX_BYTES))
        # All rows are ingested: the memtable is never filled, so it may be as small as RocksDB allows.
        options.set_write_buffer_size(64 << 10)
        options.set_max_write_buffer_number(2)
        options.set_max_background_jobs(COMPACTION_THREADS)
        options.set_disable_auto_compactions(not self._compacts)
        options.set_level_zero_file_num_compaction_trigger(LEVEL0_COMPACTION_FILES)
        options.set_level_zero_slowdown_writes_trigger(1 << 20)
        options.set_level_zero_stop_writes_trigger(1 << 20)
        options.set_soft_pending_compaction_bytes_limit(0)
        options.set_hard_pending_compaction_bytes_limit(0)
        # Files are smaller than RocksDB's default, because an incremental snapshot uploads whole files.
        options.set_target_file_size_base(16 * _MIB)
        # Files of lower levels are larger, so that a snapshot of a large state has hundreds of files, not thousands.
        options.set_target_file_size_multiplier(2)
        options.set_max_bytes_for_level_base(64 * _MIB)
        options.set_level_compaction_dynamic_level_bytes(True)
        if self._compacts:
            _compact_by_tiers(options)
        options.set_max_open_files(-1)
        options.set_max_file_opening_threads(2)
        options.set_max_manifest_file_size(_MIB)
        options.set_keep_log_file_num(1)
        options.set_max_log_file_size(_MIB)
        options.set_stats_dump_period_sec(0)
        options.set_stats_persist_period_sec(0)
        options.set_skip_stats_update_on_db_open(True)
        return options

    def reader_options(self) -> rocksdict.Options:
        """Return the options of a reader.

        Indexes and filters are kept outside the cache while their files are open. They are larger than a shard of a
        small cache, which would evict them at once. They take 2.5 bytes a row and 1% of the files' size.

        Uncompressed table files are mapped into memory and read there without a copy. A random row then takes two
        thirds of the time of a compressed one.
        """
        options = self.options()
        tables = self._tables()
        tables.set_cache_index_and_filter_blocks(False)
        options.set_block_based_table_factory(tables)
        options.set_allow_mmap_reads(self.compression == "none")
        return options

    def _tables(self) -> rocksdict.BlockBasedOptions:
        tables = rocksdict.BlockBasedOptions()
        tables.set_format_version(TABLE_FORMAT_VERSION)
        tables.set_block_size(4 << 10)
        tables.set_bloom_filter(BLOOM_BITS_PER_KEY, False)
        tables.set_block_cache(self.cache)
        tables.set_cache_index_and_filter_blocks(True)
        return tables


def _compact_by_tiers(options: rocksdict.Options) -> None:
    """Merge files of similar size, and merge the oldest ones only when newer ones have half their size.

    Each batch adds a file to a live database, with rows spread over all keys. If files were merged by levels, all rows
    would be rewritten, uploaded again, and put into column files again every few batches. The price is that up to half
    as many rows again, hidden by newer ones, may be kept. Offline work compacts by levels, because a range of keys can
    then be compacted alone.
    """
    tiers = rocksdict.UniversalCompactOptions()
    tiers.size_ratio = TIER_GROWTH_PERCENT
    tiers.max_size_amplification_percent = MAX_HIDDEN_PERCENT
    options.set_compaction_style(rocksdict.DBCompactionStyle.universal())
    options.set_universal_compaction_options(tiers)
    options.set_target_file_size_base(TIER_FILE_BYTES)
    options.set_target_file_size_multiplier(1)


def open_database(folder: Path, options: rocksdict.Options, mode: rocksdict.AccessType) -> rocksdict.Rdict:
    """Open a database with these options.

    The options of the column family are passed by name. Otherwise, the binding would read an existing database's
    options from a file in its folder, which has neither the cache nor the filters and may turn compaction off.
    """
    return rocksdict.Rdict(str(folder), options, column_families={"default": options}, access_type=mode)
