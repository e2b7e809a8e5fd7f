"""The rows of a broadcast state: a map that is the same in all partitions.

Copies with the same digest have the same rows. A worker process therefore keeps one copy for all tasks that need it,
whatever their partition, and reads it from the store only if no earlier task has. A task adds its own changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from typing_extensions import override

from pyspark_ckpt.operators.rows.base import BaseRows
from pyspark_ckpt.operators.rows.state_rows import ROW_BYTES, StateRows, Written, sort_rows
from pyspark_ckpt.state_store.arrays.sums import hash_row
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.meta import StateMeta
from pyspark_ckpt.state_store.format.partition_states import encode_broadcast_head, encode_sum, read_digest

COPIES_KEPT = 8


@dataclass(frozen=True)
class Copy:
    """A map as it was committed: stored values by stored keys. It does not change."""

    rows: Mapping[bytes, bytes]
    made: dict[Hashable, Any] = field(default_factory=dict)
    """What callers have made of all rows, for reuse."""

    @cached_property
    def keys(self) -> list[bytes]:
        """The stored keys, in order."""
        return sorted(self.rows)

    def make(self, name: Hashable, of: Callable[[Copy], Any]) -> Any:
        """Return the result of ``of`` for this copy, made once under this name. It must not be changed."""
        if name not in self.made:
            self.made[name] = of(self)
        return self.made[name]


_copies: OrderedDict[tuple[int, int], Copy] = OrderedDict()
"""By the number of rows and the sum of their hashes: the latest that tasks of this process have used."""


class BroadcastRows(StateRows):
    """The rows of one broadcast state in one task."""

    def __init__(self, number: int, session: BaseRows, base: StateMeta | None, whose: str) -> None:
        """``base``: the state at the base version; None if it is new. Raises FormatError (it has no digest)."""
        self.number = number
        self._session = session
        self._base = (0, 0) if base is None else (base.rows, int(read_digest(base), 16))
        self._whose = whose
        self._head = encode_broadcast_head(number)
        self._changed: dict[bytes, bytes | None] = {}
        self._staged: dict[bytes, bytes | None] = {}
        """What was changed and is staged already."""
        self._now: Copy | None = None
        """With all changes."""

    @property
    @override
    def change(self) -> int:
        return sum((value is not None) - (entry in self._of_base.rows) for entry, value in self._all_changed.items())

    @property
    def digest(self) -> str:
        """The digest of all rows, with the task's changes. It needs no read if nothing was changed."""
        total = self._base[1]
        for entry, value in self._all_changed.items():
            before = self._of_base.rows.get(entry)
            total += (0 if value is None else self._hash(entry, value)) - (
                0 if before is None else self._hash(entry, before)
            )
        return encode_sum(total)

    @property
    def copy(self) -> Copy:
        """The map as it is now."""
        if self._now is None:
            changed = self._all_changed
            if not changed:
                return self._of_base
            merged = {**self._of_base.rows, **changed}
            self._now = Copy({entry: value for entry, value in merged.items() if value is not None})
        return self._now

    def get(self, entry: bytes) -> bytes | None:
        """Return the stored value of an entry, None if absent."""
        for changed in (self._changed, self._staged):
            if entry in changed:
                return changed[entry]
        return self._of_base.rows.get(entry)

    def scan(self, begin: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries from ``begin`` up to ``end`` (exclusive), those of now, in key order."""
        copy = self.copy
        first = bisect_left(copy.keys, begin)
        last = len(copy.keys) if end is None else bisect_left(copy.keys, end)
        return ((entry, copy.rows[entry]) for entry in copy.keys[first:last])

    def put(self, entry: bytes, value: bytes | None) -> None:
        """Set the stored value of an entry; None removes it."""
        if self.get(entry) == value:
            return
        self._changed[entry] = value
        self._now = None
        self._session.hold(ROW_BYTES + len(entry) + len(value or b""))

    def clear(self) -> None:
        """Remove all entries."""
        for entry in list(self.copy.rows):
            self.put(entry, None)

    @override
    def flush(self, end: bytes | None) -> Written:
        if end is not None:  # the turn of the partition is over with the last key
            return iter(())
        written, self._changed = self._changed, {}
        self._staged |= written
        return sort_rows(self._head, written)

    @property
    def _all_changed(self) -> Mapping[bytes, bytes | None]:
        return {**self._staged, **self._changed} if self._staged else self._changed

    @cached_property
    def _of_base(self) -> Copy:
        """The copy of the base version. Raises FormatError if its rows are not those that were committed."""
        kept = _copies.pop(self._base, None) or self._read()
        _copies[self._base] = kept
        while len(_copies) > COPIES_KEPT:
            _copies.popitem(last=False)
        return kept

    def _read(self) -> Copy:
        rows = dict(self._session.scan(self._head)) if self._base[0] else {}
        found = len(rows), sum(self._hash(entry, value) for entry, value in rows.items())
        if found != self._base:
            raise FormatError(
                f"{self._whose} has {found[0]} entries with the digest {found[1]:032x}, but was committed with "
                f"{self._base[0]} entries and the digest {self._base[1]:032x}."
            )
        return Copy(rows)

    def _hash(self, entry: bytes, value: bytes) -> int:
        return hash_row(self._head + entry, value)
