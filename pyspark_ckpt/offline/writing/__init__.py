"""Writes state: rows as ``open_state`` shows them become the state of a savepoint."""
