"""The rows of one state in one task: what the base version has, under what the task has written.

Rows are read for many keys at once. What is written stays in memory until the session stages it, sorted. A key
is given as its *suffix*, hash and bytes, which is what its row has behind the number of the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from pyspark_ckpt.state_store.columns.writes import Writes
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark_ckpt.operators.session.worker import WorkerSession

ROW_BYTES = 256
"""About what a row takes in memory that is written by itself, beside its value."""
UNREAD: Any = object()
"""Stands for a row that has not been read."""


class Position:
    """Which key is being processed, and which ones follow, so that a state can be read for all of them at once."""

    suffix: bytes
    """Of the key; there is none before the first one's turn, nor where many keys are processed at once."""
    key: object
    """The same key, as the user's code is given it."""

    def __init__(self) -> None:
        """None yet."""
        self.upcoming: Sequence[bytes] = ()

    def __getattr__(self, name: str) -> NoReturn:
        """Raise InvalidInputError for the key that is not there. Whatever is there is not asked for here."""
        if name != "suffix":
            raise AttributeError(name)
        raise InvalidInputError(
            "A state or a timer is used for the current key, and no key is being processed.",
            hint="Use it in process() or on_timer(), or call its form for many keys.",
        )


Written: TypeAlias = "Iterator[tuple[bytes, bytes | None]] | Writes"
"""Rows in stored order, None for one that is deleted."""


def stored(head: bytes, rows: Mapping[bytes, bytes | None]) -> Iterator[tuple[bytes, bytes | None]]:
    """Rows of a state, by what their keys have behind its ``head``, in stored order."""
    keys = sorted(rows)
    return zip(map(head.__add__, keys), map(rows.__getitem__, keys), strict=True)


class RowCount:
    """How many rows more a state has than in the base version, exactly and with no read per write."""

    def __init__(self, session: WorkerSession) -> None:
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

    def resolved(self) -> int:
        """The count, after all look-ups that it needs."""
        if self._unread:
            self._unread.sort()
            self._change -= len(self._unread) - self._session.get_many(self._unread).count(None)
            self._unread = []
        return self._change
