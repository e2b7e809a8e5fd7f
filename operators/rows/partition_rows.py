"""The rows of a list that belongs to a partition and not to a key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from typing_extensions import override

from pyspark_ckpt.operators.rows.base import BaseRows, merge_rows
from pyspark_ckpt.operators.rows.state_rows import ROW_BYTES, StateRows, Written, sort_rows
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.partition_states import MAX_ELEMENTS, encode_element, encode_list_head


class PartitionListRows(StateRows):
    """The elements of the list of one partition. See ``state_store.format.partition_states`` for their keys."""

    def __init__(self, number: int, session: BaseRows) -> None:
        """Read the list of the session's partition."""
        self.number = number
        self._session = session
        self._head = encode_list_head(number, session.partition)
        self._written: dict[bytes, bytes | None] = {}
        self._added = 0
        self._change = 0

    @property
    @override
    def change(self) -> int:
        return self._change

    def get(self) -> Iterator[bytes]:
        """Return the elements in the order of adding: those of now, read lazily."""
        return (value for _, value in self._scan())

    def append(self, values: Sequence[bytes]) -> None:
        """Add elements. Raises InvalidInputError (more than one commit can add)."""
        first = self._added
        if first + len(values) > MAX_ELEMENTS:
            raise InvalidInputError(f"A list of a partition gets more than {MAX_ELEMENTS:,} elements in one batch.")
        self._added += len(values)
        self._change += len(values)
        for number, value in enumerate(values, first):
            self._written[encode_element(self._session.version, number)] = value
        self._session.hold(sum(map(len, values)) + ROW_BYTES * len(values))

    def clear(self) -> None:
        """Remove all elements."""
        removed = [entry for entry, _ in self._scan()]
        self._change -= len(removed)
        self._written |= dict.fromkeys(removed)
        self._session.hold(ROW_BYTES * len(removed))

    @override
    def flush(self, end: bytes | None) -> Written:
        if end is not None:  # the turn of the partition is over with the last key
            return iter(())
        written, self._written = self._written, {}
        return sort_rows(self._head, written)

    def _scan(self) -> Iterator[tuple[bytes, bytes]]:
        return merge_rows(self._session.scan(self._head), sorted(self._written.items()))
