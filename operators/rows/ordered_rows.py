"""The rows of a state in time order. The key of a row is an instant, then the key and entry that the row is for."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from pyspark_ckpt.operators.rows.base import UNREAD, BaseRows
from pyspark_ckpt.operators.rows.state_rows import (
    ARRAYS_BYTES,
    ROW_BYTES,
    RowCount,
    Staged,
    StateRows,
    Written,
    sort_rows,
)
from pyspark_ckpt.state_store.arrays.packed import Packed
from pyspark_ckpt.state_store.arrays.writes import Writes, newest
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.keys import HASH_BYTES, state_head

if TYPE_CHECKING:
    from numpy.typing import NDArray


INSTANT = struct.Struct(">Q")
THERE = b"\x01"
_MIN_BYTES = INSTANT.size + HASH_BYTES


def encode_ordered_key(instant: int, row: bytes) -> bytes:
    """Return the key ``instant · key and entry · hash`` for a row that begins with its hash."""
    return INSTANT.pack(instant) + row[HASH_BYTES:] + row[:HASH_BYTES]


def encode_ordered_keys(instants: NDArray[np.integer[Any]], rows: Packed) -> Packed:
    """``encode_ordered_key`` for many rows, each with its instant."""
    widths = rows.widths()
    if len(widths) != 1:
        return Packed.of(list(map(encode_ordered_key, instants.tolist(), rows.strings())))
    keys = np.empty((len(rows), INSTANT.size + widths[0]), np.uint8)
    keys[:, : INSTANT.size] = instants.astype(">u8").view(np.uint8).reshape(-1, INSTANT.size)
    matrix = rows.matrix(widths[0])
    keys[:, INSTANT.size : -HASH_BYTES] = matrix[:, HASH_BYTES:]
    keys[:, -HASH_BYTES:] = matrix[:, :HASH_BYTES]
    return Packed.of_matrix(keys)


def decode_ordered_key(key: bytes) -> bytes:
    """Return the row for which ``encode_ordered_key`` made the key."""
    return key[-HASH_BYTES:] + key[INSTANT.size : -HASH_BYTES]


def numbers_at(keys: Packed, behind: int | NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the number in eight bytes of each key, ``behind`` bytes after its beginning."""
    words = Packed(keys.data, keys.at + behind, keys.size).matrix(INSTANT.size)
    return words.reshape(-1).view(">u8").astype(np.uint64)


def decode_ordered_keys(keys: Packed) -> Packed:
    """``decode_ordered_key`` for many keys."""
    hashes = Packed(keys.data, keys.at + keys.size - HASH_BYTES, keys.size).matrix(HASH_BYTES)
    return keys.behind(INSTANT.size).before(HASH_BYTES).behind_heads(hashes)


class OrderedRows(Staged):
    """The rows of one state: those of the base version, and separately those that the task has written."""

    def __init__(self, number: int, session: BaseRows, there: bytes = THERE) -> None:
        """Read and write state ``number``, which is in key order. ``there``: the value of a row that is put."""
        self.number = number
        self._there = there
        self._head = state_head(number)
        self._session = session
        self._written: dict[bytes, bytes | None] = {}
        self._writes: list[Writes] = []
        """Rows that were written as arrays, later than those by key. For one key, the last one wins."""
        self._converted = 0

    def scan(self, begin: bytes = b"", end: bytes | None = None) -> Iterator[bytes]:
        """Return the keys of the base version from ``begin`` up to ``end`` that this task has not written, in order."""
        return (key for key, _ in self.items(begin, end))

    def items(self, begin: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """``scan`` with the values. Raises FormatError for a key that is too short to have an instant and a hash."""
        self._to_rows()
        for row in self._session.scan(self._head, begin, end):
            self._check(row[0])
            if row[0] not in self._written:
                yield row

    def portions(self, end: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        """``items`` up to ``end``, in portions that are not empty: fewer calls if all rows are needed."""
        self._to_rows()
        for rows in self._session.portions(self._head, end):
            self._check(min(rows, key=_size_of_key)[0])
            unwritten = [row for row in rows if row[0] not in self._written] if self._written else rows
            if unwritten:
                yield unwritten

    def _check(self, key: bytes) -> None:
        if len(key) < _MIN_BYTES:
            raise FormatError(
                f"State {self.number}, in time order, has a row under {key.hex()!r}, which has no instant and hash."
            )

    def put(self, key: bytes, *, there: bool) -> None:
        """Write a row or delete it."""
        self._to_rows()
        self._written[key] = self._there if there else None
        self._hold(ROW_BYTES)

    def put_writes(self, written: Writes) -> None:
        """Write many rows, in any order."""
        self._writes.append(written)
        self._hold(len(written.keys.data) + int(written.cells.values.size.sum()) + ARRAYS_BYTES * len(written))

    def flush(self, _end: bytes | None) -> Written:
        """See Staged. Rows of all keys: they are not in the order of keys."""
        written, self._written = self._written, {}
        writes, self._writes = self._writes, []
        if writes:
            return newest([each.prefix(self._head) for each in (Writes.of(written.items()), *writes)])
        return sort_rows(self._head, written)

    def _to_rows(self) -> None:
        """Convert all writes to rows by key."""
        for each in self._writes:
            self._written.update(each.rows())
            self._converted += len(each)
        self._writes.clear()

    def _hold(self, size_bytes: int) -> None:
        """Count the memory of written rows, with that of rows converted since the last call, which spilled nothing."""
        converted, self._converted = self._converted, 0
        self._session.hold(size_bytes + ROW_BYTES * converted)


def _size_of_key(row: tuple[bytes, bytes]) -> int:
    return len(row[0])


class CountedRows(OrderedRows, StateRows):
    """Ordered rows that count themselves."""

    @override
    def __init__(self, number: int, session: BaseRows, there: bytes = THERE) -> None:
        super().__init__(number, session, there)
        self._count = RowCount(session)

    def put(self, key: bytes, *, there: bool, was_there: bool | None = None) -> None:
        """See OrderedRows. ``was_there``: whether the base version has the row, if that is known."""
        if key in self._written:
            was_there = self._written[key] is not None
        elif was_there is None:
            self._count.unread(self._head + key)
        self._count.add(there - bool(was_there))
        super().put(key, there=there)

    def is_deleted(self, key: bytes) -> bool:
        """Return whether this task has deleted the row."""
        return self._written.get(key, UNREAD) is None

    def is_written(self, key: bytes) -> bool:
        """Return whether this task has written or deleted the row."""
        return key in self._written

    def read_base(self, keys: list[bytes]) -> list[bytes | None]:
        """Return what the base version has under ``keys``, which are sorted; None where absent."""
        return self._session.get_many([self._head + key for key in keys])

    def first_written(self) -> bytes | None:
        """Return the first key that this task has written and not deleted, None if there is none."""
        return min((key for key, value in self._written.items() if value is not None), default=None)

    @property
    @override
    def change(self) -> int:
        return self._count.resolve()

    @override
    def flush(self, end: bytes | None) -> Written:
        self._count.resolve()
        return super().flush(end)
