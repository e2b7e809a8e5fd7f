"""RocksDB's table files, read and built many rows at once. The state server does not import it."""
