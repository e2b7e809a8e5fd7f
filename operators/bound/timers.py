"""Timers in a running task: rows under the instant at which they fire."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_ckpt.operators.bound.base import Binding
from pyspark_ckpt.operators.declarations.timers import (
    CLOCKS,
    MICROSECONDS,
    InstantLike,
    Timers,
    microseconds_of,
    namespace_bytes,
    round_up_ms,
)
from pyspark_ckpt.operators.rows.ordered_rows import CountedRows
from pyspark_ckpt.operators.rows.state_rows import Written
from pyspark_ckpt.operators.rows.timer_rows import (
    EXACT,
    ROUNDED,
    encode_rounded_key,
    end_of_ms,
    read_timer_key,
    timer_key,
)
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.keys import state_head

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.declarations.ttl import Clock
    from pyspark_ckpt.operators.encoding.keys import Keys
    from pyspark_ckpt.operators.session.worker import WorkerSession


class BoundTimers(Timers):
    """See Timers; for the rows, see ``timer_rows``."""

    index = None

    def __init__(self, binding: Binding) -> None:
        """Bind timers to the rows of one state. All timers up to the session's ``fired_ms`` have fired."""
        super().__init__(binding.state.name, clock=binding.state.clock)  # type: ignore[attr-defined]  # Timers
        self.number = binding.number
        self._rows = CountedRows(binding.number, binding.session, EXACT)
        self._at = binding.session.position
        self._now_ms = binding.session.now_ms[self.clock]
        self._fired_ms = binding.session.fired_ms.get(self.clock)
        self._due: list[bytes] = []
        self._earliest: bytes | None = None
        self._replaced: set[bytes] = set()
        """Keys under which an earlier release may have stored instants that were registered or deleted since."""

    def register(self, at: InstantLike, namespace: str = "") -> None:
        """See Timers."""
        self._put(microseconds_of(at), self._at.suffix + namespace_bytes(namespace), there=True)

    def delete(self, at: InstantLike, namespace: str = "") -> None:
        """See Timers."""
        self._put(microseconds_of(at), self._at.suffix + namespace_bytes(namespace), there=False)

    def register_rows(self, keys: Keys, index: NDArray[Any], at: pa.Array, namespace: str = "") -> None:
        """See Timers."""
        for row, at_us in self._rows_of(keys, index, at, namespace):
            self._put(at_us, row, there=True)

    def delete_rows(self, keys: Keys, index: NDArray[Any], at: pa.Array, namespace: str = "") -> None:
        """See Timers."""
        for row, at_us in self._rows_of(keys, index, at, namespace):
            self._put(at_us, row, there=False)

    def scan_due(self) -> Iterator[bytes]:
        """Return the keys of the base version whose timers are due, in time order."""
        begin = b"" if self._fired_ms is None else end_of_ms(self._fired_ms)
        return self._rows.scan(begin, end_of_ms(self._now_ms))

    def next_registered(self) -> bytes | None:
        """Return the first key that this task has registered and that is already due, None if there is none."""
        return self._due[0] if self._due else None

    def pop_registered(self) -> bytes:
        """Remove and return the key that ``next_registered`` returned."""
        return heappop(self._due)

    def take(self, key: bytes) -> bool:
        """Remove the timer under this key. Return whether it still existed."""
        if self._rows.is_deleted(key):
            return False
        may_be_replaced = key in self._replaced and not self._rows.is_written(key)
        is_replaced = may_be_replaced and self._are_rounded([key])[0]
        self._rows.put(key, there=False, was_there=True)
        return not is_replaced

    def earliest_ms(self) -> int | None:
        """Return when the first remaining timer is due, None if there is none. To be called after the last flush.

        May be too early after several flushes: timers count that were deleted for keys of a later flush.
        """
        return None if self._earliest is None else round_up_ms(read_timer_key(self._earliest).at_us)

    def flush(self, end: bytes | None) -> Written:
        """See Bound."""
        self._remove_replaced()
        stored = next(self._rows.scan(end_of_ms(self._now_ms)), None)
        known = [key for key in (stored, self._earliest, self._rows.first_written()) if key is not None]
        self._earliest = min(known, default=None)
        return self._rows.flush(end)

    def spill(self) -> Written:
        """See Staged. Nothing: fired and deleted timers are looked up among the written rows."""
        return iter(())

    @property
    def change(self) -> int:
        """See Bound."""
        return self._rows.change

    def sweep(self, _most: int) -> int:
        """Do nothing: no timer expires."""
        return 0

    def _put(self, at_us: int, row: bytes, *, there: bool) -> None:
        key = timer_key(at_us, row)
        self._rows.put(key, there=there)
        if at_us % MICROSECONDS:
            self._replaced.add(encode_rounded_key(at_us, row))
        if there and at_us <= self._now_ms * MICROSECONDS:
            heappush(self._due, key)

    def _are_rounded(self, keys: list[bytes]) -> list[bool]:
        """Return, for each key, whether the base version has a row that an earlier release wrote under it."""
        return [value == ROUNDED for value in self._rows.read_base(keys)]

    def _remove_replaced(self) -> None:
        """Delete the rounded rows of instants that were registered or deleted since."""
        keys = sorted(key for key in self._replaced if not self._rows.is_written(key))
        self._replaced = set()
        for key, is_rounded in zip(keys, self._are_rounded(keys), strict=True):
            if is_rounded:
                self._rows.put(key, there=False, was_there=True)

    def _rows_of(self, keys: Keys, index: NDArray[Any], at: pa.Array, namespace: str) -> Iterator[tuple[bytes, int]]:
        if isinstance(at, pa.ChunkedArray):
            at = at.combine_chunks()
        if not isinstance(at, pa.Array) or not pa.types.is_timestamp(at.type) or len(at) != len(index):
            given = f"{at.type} of {len(at)} rows" if isinstance(at, pa.Array) else type(at).__name__
            raise InvalidInputError(
                f"Timers {self.name!r} are given {given}: give an Arrow array of {len(index)} timestamps."
            )
        behind = namespace_bytes(namespace)
        try:
            micros = at.cast(pa.timestamp("us", at.type.tz)).cast(pa.int64()).to_pylist()
        except pa.ArrowException as problem:
            raise InvalidInputError(
                f"Timers {self.name!r} are given instants of type {at.type}, and timers have microseconds: {problem}",
                hint="Round them to microseconds.",
            ) from problem
        for suffix, instant in zip(keys.suffixes.each(index).strings(), micros, strict=True):
            if instant is not None:
                yield suffix + behind, instant


def find_left_ms(session: WorkerSession, uid: str) -> dict[Clock, int]:
    """Return, by clock, when the first timers of operator ``uid`` are due that its program does not declare."""
    found: dict[Clock, int] = {}
    for state in session.left_alone:
        clock = state.descriptor.encoder.get("clock")
        if state.rows and state.uid == uid and clock in CLOCKS:
            fired_ms = session.fired_ms.get(clock)
            begin = b"" if fired_ms is None else end_of_ms(fired_ms)
            for key, _ in islice(session.scan(state_head(state.number), begin), 1):
                due_ms = round_up_ms(read_timer_key(key).at_us)
                found[clock] = min(due_ms, found.get(clock, due_ms))
    return found
