"""Timers as a running task has them: rows under the instant at which they fire."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_ckpt.operators.bound import Binding
from pyspark_ckpt.operators.ordered_rows import INSTANT, CountedRows, ordered_key
from pyspark_ckpt.operators.state_rows import Written
from pyspark_ckpt.operators.timers import InstantLike, Timers, milliseconds_at, rounded_up_ms
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.keys import Keys

_ZERO = 1 << 63
_LAST = (1 << 64) - 1


class BoundTimers(Timers):
    """See Timers. Rows ``instant · key and namespace · hash``."""

    index = None

    def __init__(self, binding: Binding) -> None:
        """The rows of one state. All timers up to the clock of the task's last batch have fired."""
        super().__init__(binding.state.name, clock=binding.state.clock)  # type: ignore[attr-defined]  # Timers
        self.number = binding.number
        self._rows = CountedRows(binding.number, binding.session)
        self._at = binding.session.position
        self._now_ms = binding.session.now_ms[self.clock]
        self._fired_ms = binding.session.fired_ms.get(self.clock)
        self._due: list[bytes] = []
        self._earliest: bytes | None = None

    def register(self, at: InstantLike, namespace: str = "") -> None:
        """See Timers."""
        self._register(milliseconds_at(at), self._at.suffix + namespace.encode())

    def delete(self, at: InstantLike, namespace: str = "") -> None:
        """See Timers."""
        self._rows.put(_key(milliseconds_at(at), self._at.suffix + namespace.encode()), there=False)

    def register_rows(self, keys: Keys, index: NDArray[Any], at: pa.Array, namespace: str = "") -> None:
        """See Timers."""
        for row, at_ms in self._rows_of(keys, index, at, namespace):
            self._register(at_ms, row)

    def delete_rows(self, keys: Keys, index: NDArray[Any], at: pa.Array, namespace: str = "") -> None:
        """See Timers."""
        for row, at_ms in self._rows_of(keys, index, at, namespace):
            self._rows.put(_key(at_ms, row), there=False)

    def stored_due(self) -> Iterator[bytes]:
        """Rows of the base version whose time has come, in the order of time."""
        begin = b"" if self._fired_ms is None else _instant(self._fired_ms + 1)
        return self._rows.scan(begin, _instant(self._now_ms + 1))

    def next_registered(self) -> bytes | None:
        """The first row that this task has registered too late to wait: its time has come."""
        return self._due[0] if self._due else None

    def pop_registered(self) -> bytes:
        """Take the row that ``next_registered`` gave."""
        return heappop(self._due)

    def take(self, key: bytes) -> bool:
        """Whether the timer of this row is still there; it is not from now on."""
        if self._rows.is_deleted(key):
            return False
        self._rows.put(key, there=False, was_there=True)
        return True

    def earliest_ms(self) -> int | None:
        """When the first timer that is left is to fire, after all was flushed; None if there is none.

        May be too early if there were several flushes: a timer that was deleted for a key of a later one counts.
        """
        return None if self._earliest is None else instant_ms(self._earliest)

    def flush(self, end: bytes | None) -> Written:
        """See Bound."""
        stored = next(self._rows.scan(_instant(self._now_ms + 1)), None)
        known = [key for key in (stored, self._earliest, self._rows.first_written()) if key is not None]
        self._earliest = min(known, default=None)
        return self._rows.flush(end)

    def spill(self) -> Written:
        """See Staged: nothing, for what has fired or was deleted is looked for among what was written."""
        return iter(())

    @property
    def change(self) -> int:
        """See Bound."""
        return self._rows.change

    def sweep(self, _most: int) -> int:
        """Nothing expires."""
        return 0

    def _register(self, at_ms: int, row: bytes) -> None:
        key = _key(at_ms, row)
        self._rows.put(key, there=True)
        if at_ms <= self._now_ms:
            heappush(self._due, key)

    def _rows_of(self, keys: Keys, index: NDArray[Any], at: pa.Array, namespace: str) -> Iterator[tuple[bytes, int]]:
        if isinstance(at, pa.ChunkedArray):
            at = at.combine_chunks()
        if not isinstance(at, pa.Array) or not pa.types.is_timestamp(at.type) or len(at) != len(index):
            given = f"{at.type} of {len(at)} rows" if isinstance(at, pa.Array) else type(at).__name__
            raise InvalidInputError(
                f"Timers {self.name!r} are given {given}: give an Arrow array of {len(index)} timestamps."
            )
        behind = namespace.encode()
        micros = at.cast(pa.timestamp("us", at.type.tz)).cast(pa.int64()).to_pylist()
        for suffix, instant in zip(keys.suffixes.each(index).strings(), micros, strict=True):
            if instant is not None:
                yield suffix + behind, rounded_up_ms(instant)


def instant_ms(key: bytes) -> int:
    """When the timer of a row is to fire."""
    return int(INSTANT.unpack_from(key)[0]) - _ZERO


def _key(at_ms: int, row: bytes) -> bytes:
    return ordered_key(at_ms + _ZERO, row)


def _instant(at_ms: int) -> bytes:
    return INSTANT.pack(min(at_ms + _ZERO, _LAST))
