"""Restore: make a checkpoint from a savepoint or from another checkpoint, for any number of partitions."""
