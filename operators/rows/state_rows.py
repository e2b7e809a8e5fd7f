"""The rows of one state in one task: what the base version has, under what the task has written.

Rows are read for many keys at once. What is written stays in memory until the session stages it, sorted. A key
is given as its *suffix*, hash and bytes, which is what its row has behind the number of the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from pyspark_ckpt.operators.rows.base import BaseRows
from pyspark_ckpt.state_store.columns.writes import Writes

ROW_BYTES = 256
"""About what a row takes in memory that is written by itself, beside its value."""


Written: TypeAlias = "Iterator[tuple[bytes, bytes | None]] | Writes"
"""Rows in stored order, None for one that is deleted."""


def sort_rows(head: bytes, rows: Mapping[bytes, bytes | None]) -> Iterator[tuple[bytes, bytes | None]]:
    """Rows of a state, by what their keys have behind its ``head``, in stored order."""
    keys = sorted(rows)
    return zip(map(head.__add__, keys), map(rows.__getitem__, keys), strict=True)


class RowCount:
    """How many rows more a state has than in the base version, exactly and with no read per write."""

    def __init__(self, session: BaseRows) -> None:
        """None yet."""
        self._session = session
        self._change = 0
        self._unread: list[bytes] = []

    def add(self, change: int) -> None:
        """So many rows were added, those that nobody has read counted as not there."""
        self._change += change

    def unread(self, key: bytes) -> None:
        """A row was written whose presence in the base version nobody knows: look it up later, with others."""
        self._unread.append(key)

    def resolve(self) -> int:
        """The count, after all look-ups that it needs."""
        if self._unread:
            self._unread.sort()
            self._change -= len(self._unread) - self._session.get_many(self._unread).count(None)
            self._unread = []
        return self._change
