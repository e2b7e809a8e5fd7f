"""Savepoints: taken, restored, deleted."""
