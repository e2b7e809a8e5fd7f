"""The rows of a list that belongs to a partition and not to a key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from typing_extensions import override

from pyspark_ckpt.operators.rows.base import BaseRows
from pyspark_ckpt.operators.rows.state_rows import ROW_BYTES, StateRows, Written, sort_rows
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.partition_states import MAX_ELEMENTS, encode_element, encode_list_head


class PartitionListRows(StateRows):
    """The elements of the list of one partition. See ``state_store.format.partition_states`` for their keys.

    What the task adds comes after all that the store has. So a list is what the store has left, and then what was
    added.
    """

    def __init__(self, number: int, session: BaseRows) -> None:
        """Read the list of the session's partition."""
        self.number = number
        self._session = session
        self._head = encode_list_head(number, session.partition)
        self._added: dict[bytes, bytes] = {}
        """Elements that are not staged yet."""
        self._removed: dict[bytes, None] = {}
        """Elements of the store whose removal is not staged yet."""
        self._is_store_empty = False
        """Whether the task has removed all that the store has, staged elements included."""
        self._next = 0
        self._change = 0
        self._held_bytes = 0

    @property
    @override
    def change(self) -> int:
        return self._change

    @property
    @override
    def held_bytes(self) -> int:
        return self._held_bytes

    def get(self) -> Iterator[bytes]:
        """Return the elements in the order of adding: those of now, read lazily."""
        return chain((value for _, value in self._scan_store()), list(self._added.values()))

    def append(self, values: Sequence[bytes]) -> None:
        """Add elements. Raises InvalidInputError (more than one commit can add)."""
        first = self._next
        if first + len(values) > MAX_ELEMENTS:
            raise InvalidInputError(f"A list of a partition gets more than {MAX_ELEMENTS:,} elements in one batch.")
        self._next += len(values)
        self._change += len(values)
        for number, value in enumerate(values, first):
            self._added[encode_element(self._session.version, number)] = value
        self._hold(sum(map(len, values)) + ROW_BYTES * len(values))

    def clear(self) -> None:
        """Remove all elements."""
        removed = dict.fromkeys(entry for entry, _ in self._scan_store())
        self._change -= len(removed) + len(self._added)
        self._removed |= removed
        self._added = {}
        self._is_store_empty = True
        self._hold(ROW_BYTES * len(removed))

    @override
    def flush(self, end: bytes | None) -> Written:
        if end is not None:  # the turn of the partition is over with the last key
            return iter(())
        written: dict[bytes, bytes | None] = {**self._removed, **self._added}
        self._is_store_empty = self._is_store_empty and not self._added
        self._added, self._removed, self._held_bytes = {}, {}, 0
        return sort_rows(self._head, written)

    def _scan_store(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield what is left of the base version, and what was staged."""
        return iter(()) if self._is_store_empty else self._session.scan(self._head)

    def _hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self._session.hold(size_bytes)
