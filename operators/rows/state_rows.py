"""The rows of one state in one task: what the task has written, on top of what the base version has.

Rows are read for many keys at once. Written rows stay in memory until the session stages them, sorted. A key is given
as its *suffix*, its hash and bytes: the part of a row's key after the number of the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from pyspark_ckpt.operators.rows.base import BaseRows
from pyspark_ckpt.state_store.columns.writes import Writes

ROW_BYTES = 256
"""Approximate memory of a row that is written on its own, without its value."""


Written: TypeAlias = "Iterator[tuple[bytes, bytes | None]] | Writes"
"""Rows in stored order; the value is None if the row is deleted."""


def sort_rows(head: bytes, rows: Mapping[bytes, bytes | None]) -> Iterator[tuple[bytes, bytes | None]]:
    """Return ``rows`` in stored order, with ``head`` before each key."""
    keys = sorted(rows)
    return zip(map(head.__add__, keys), map(rows.__getitem__, keys), strict=True)


class RowCount:
    """The exact change of a state's row count since the base version, without a read per write."""

    def __init__(self, session: BaseRows) -> None:
        """Begin with no change."""
        self._session = session
        self._change = 0
        self._unread: list[bytes] = []

    def add(self, change: int) -> None:
        """Count added rows. A row that has not been read counts as absent before."""
        self._change += change

    def unread(self, key: bytes) -> None:
        """Note a written row that may or may not be in the base version: it is looked up later, with others."""
        self._unread.append(key)

    def resolve(self) -> int:
        """Return the change, after all look-ups that it needs."""
        if self._unread:
            self._unread.sort()
            self._change -= len(self._unread) - self._session.get_many(self._unread).count(None)
            self._unread = []
        return self._change
