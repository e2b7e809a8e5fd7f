"""Reads and builds RocksDB's table files, many rows at once. The state server does not import this package."""
