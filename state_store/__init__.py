"""The state engine: transactions, deltas, snapshots and restore of keyed state in RocksDB. Knows nothing of Spark."""
