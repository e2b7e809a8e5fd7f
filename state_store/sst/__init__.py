"""Reads RocksDB's table files, many rows at once. The state server imports only the check of a table."""
