"""Due timers, in the order in which they fire.

Due timers of the base version are listed before the rows are processed, by ranges of their hash if there are many.
Timers that are already due when a call registers them are added on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.bound.timers import BoundTimers
from pyspark_ckpt.operators.declarations.operator import HASH
from pyspark_ckpt.operators.declarations.timers import CLOCKS, Timer, timer_at
from pyspark_ckpt.operators.encoding.value_codec import SHOWN_BYTES
from pyspark_ckpt.operators.rows.timer_rows import read_timer_key
from pyspark_ckpt.operators.task.row_buffer import RowBuffer
from pyspark_ckpt.state_store.errors import FormatError, InvalidInputError
from pyspark_ckpt.state_store.format.keys import HASH_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark_ckpt.operators.declarations.ttl import Clock
    from pyspark_ckpt.operators.session.worker import WorkerSession

TIMERS, KEY = "timers", "key"
_LISTED = pa.schema([(HASH, pa.int32()), (TIMERS, pa.int32()), (KEY, pa.binary())])
"""A stored timer that is due: the number of its declared timers, and the key of its row."""
AT_ONCE = 8192
MAX_RETURNS = 1_000_000
"""How often in one batch a timer of a key may be followed by a newly registered one that is not later."""
MAX_LEFT = 100_000_000
"""After MAX_RETURNS registered timers of a key, so many more may fire in the batch if they move on at the same pace."""
_FEW = 100_000
"""Nothing is recorded about timers for the past until so many were registered."""


class Due(NamedTuple):
    """A timer that fires now, with the row suffix and the values of its key."""

    suffix: bytes
    key: tuple[Any, ...]
    timer: Timer
    clock: Clock = "event"


class _Chain(NamedTuple):
    """The timers of one key that were due when they were registered. ``returns``: how many were not later."""

    first_us: int
    last: bytes = b""
    fired: int = 0
    returns: int = 0


class Firing:
    """The due timers of one task."""

    def __init__(self, timers: Sequence[BoundTimers], session: WorkerSession, limit_bytes: int, folder: Path) -> None:
        """Fire all ``timers``. Up to ``limit_bytes`` of due ones are kept in memory, the others below ``folder``."""
        self._session = session
        self.listed = RowBuffer(_LISTED, limit_bytes, folder)
        """The due timers of the base version, for ``due``."""
        self._of_clock = [[each for each in timers if each.clock == clock] for clock in CLOCKS]
        self._timers = [each for group in self._of_clock for each in group]
        self._registered = 0
        self._chains: dict[bytes, _Chain] = {}
        self.count = 0

    def list_stored(self) -> None:
        """Put the due timers of the base version into ``listed``."""
        for number, keys in self._in_order():
            hashes = np.frombuffer(b"".join(key[-HASH_BYTES:] for key in keys), ">u4").astype(np.uint32)
            columns = [pa.array(hashes.view(np.int32)), pa.array(number, pa.int32()), pa.array(keys, pa.binary())]
            self.listed.add(pa.RecordBatch.from_arrays(columns, schema=_LISTED))

    @property
    def none(self) -> pa.Table:
        """No ``listed`` timers: ``due`` then yields those that were registered."""
        return _LISTED.empty_table()

    def due(self, listed: pa.Table) -> Iterator[Due]:
        """Yield those of the ``listed`` timers that fire, in order for each clock; each one is removed when yielded.

        Call it after the rows of these keys were processed. Timers registered meanwhile fire as well if they are due.
        """
        timers = [self._timers[number] for number in listed.column(TIMERS).to_pylist()]
        stored = list(zip(listed.column(KEY).to_pylist(), timers, strict=True))
        for group in self._of_clock:
            yield from self._fire_stored(group, [row for row in stored if row[1] in group])
        while self.has_registered:
            for group in self._of_clock:
                yield from self._fire_stored(group, [])

    @property
    def has_registered(self) -> bool:
        """Whether calls for the last timers have registered timers that are due."""
        return any(each.rows.next_registered() is not None for each in self._timers)

    def close(self) -> None:
        """Remove the files on disk."""
        self.listed.close()

    def _in_order(self) -> Iterator[tuple[list[int], list[bytes]]]:
        for group in self._of_clock:
            merged = merge(*map(self._number, group))
            while chunk := list(islice(merged, AT_ONCE)):
                yield [number for _, number in chunk], [key for key, _ in chunk]

    def _number(self, timers: BoundTimers) -> Iterator[tuple[bytes, int]]:
        number = self._timers.index(timers)
        return ((key, number) for key in timers.rows.scan_due())

    def _fire_stored(self, group: Sequence[BoundTimers], stored: Sequence[tuple[bytes, BoundTimers]]) -> Iterator[Due]:
        for begin in range(0, len(stored), AT_ONCE):
            chunk = stored[begin : begin + AT_ONCE]
            found = [self._due(key, timers) for key, timers in chunk]
            self._session.position.upcoming = sorted({each.suffix for each in found})
            for (key, timers), each in zip(chunk, found, strict=True):
                yield from self._take_registered(group, key)
                if self._take(key, timers):
                    yield each
        yield from self._take_registered(group, None)

    def _take_registered(self, group: Sequence[BoundTimers], before: bytes | None) -> Iterator[Due]:
        """Yield timers that were due when they were registered, up to the row key ``before``."""
        while heads := [(key, each) for each in group if (key := each.rows.next_registered()) is not None]:
            key, timers = min(heads, key=itemgetter(0))
            if before is not None and key >= before:
                return
            timers.rows.pop_registered()
            if self._take(key, timers):
                due = self._due(key, timers)
                self._require_progress(key, due)
                yield due

    def _require_progress(self, key: bytes, due: Due) -> None:
        """Raise InvalidInputError if the timers of a key do not reach the clock: on_timer registers what is past."""
        self._registered += 1
        if self._registered <= _FEW:
            return
        at_us = due.timer.at_us
        chain = self._chains.get(due.suffix) or _Chain(at_us)
        chain = _Chain(chain.first_us, key, chain.fired + 1, chain.returns + (key <= chain.last))
        self._chains[due.suffix] = chain
        if chain.returns > MAX_RETURNS:
            more = (
                f"a timer that is due already, and no later than the one before it, {MAX_RETURNS:,} times in one batch"
            )
            raise self._endless(due, more)
        if chain.fired % MAX_RETURNS == 0 and at_us > chain.first_us:
            left = (self._session.now_ms[due.clock] * 1000 - at_us) * chain.fired // (at_us - chain.first_us)
            if left > MAX_LEFT:
                more = f"{chain.fired:,} timers that are due already in one batch, and {left:,} more would follow"
                raise self._endless(due, more)

    def _endless(self, due: Due, more: str) -> InvalidInputError:
        return InvalidInputError(
            f"Timers {due.timer.name!r} of key {due.key}: on_timer() has registered {more}. The last one is at "
            f"{due.timer.at_us:,} µs after 1970.",
            hint="In on_timer(), register instants that are later than ctx.watermark_ms (clock='event') or "
            "ctx.processing_time_ms: timers for the past fire in the same batch.",
        )

    def _take(self, key: bytes, timers: BoundTimers) -> bool:
        is_there = timers.rows.take(key)
        self.count += is_there
        return is_there

    def _due(self, key: bytes, timers: BoundTimers) -> Due:
        at_us, row = read_timer_key(key)
        values, end = self._session.keys.read(row, HASH_BYTES)
        try:
            namespace = row[end:].decode()
        except UnicodeDecodeError as problem:
            raise FormatError(
                f"A timer of {timers.name!r} is stored as {key[:SHOWN_BYTES].hex()!r}, "
                f"and its namespace is not UTF-8: {problem.reason}."
            ) from problem
        return Due(row[:end], values, timer_at(timers.name, namespace, at_us), timers.clock)
