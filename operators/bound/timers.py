"""Timers in a running task: rows under the instant at which they fire."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from typing_extensions import override

from pyspark_ckpt.operators.bound.base import Binding
from pyspark_ckpt.operators.declarations.timers import (
    CLOCKS,
    Timers,
    namespace_bytes,
    round_up_ms,
    to_microseconds,
)
from pyspark_ckpt.operators.rows.timer_rows import TimerRows, end_of_ms, read_timer_key
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.keys import state_head

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.declarations.instants import InstantLike
    from pyspark_ckpt.operators.declarations.ttl import Clock
    from pyspark_ckpt.operators.encoding.distinct_keys import Keys
    from pyspark_ckpt.operators.session.worker import WorkerSession


class BoundTimers(Timers):
    """See Timers."""

    index = None

    def __init__(self, binding: Binding) -> None:
        """Bind timers to the rows of one state."""
        super().__init__(binding.state.name, clock=binding.state.clock)  # type: ignore[attr-defined]  # Timers
        session = binding.session
        self._at = session.position
        self.rows = TimerRows(binding.number, session, session.now_ms[self.clock], session.fired_ms.get(self.clock))
        session.follow(self.clock, self.rows.move)

    @override
    def register(self, at: InstantLike, namespace: str = "") -> None:
        self.rows.write(to_microseconds(at), self._at.suffix + namespace_bytes(namespace), there=True)

    @override
    def delete(self, at: InstantLike, namespace: str = "") -> None:
        self.rows.write(to_microseconds(at), self._at.suffix + namespace_bytes(namespace), there=False)

    @override
    def register_rows(self, keys: Keys, index: NDArray[Any], at: pa.Array, namespace: str = "") -> None:
        for row, at_us in self._encode_rows(keys, index, at, namespace):
            self.rows.write(at_us, row, there=True)

    @override
    def delete_rows(self, keys: Keys, index: NDArray[Any], at: pa.Array, namespace: str = "") -> None:
        for row, at_us in self._encode_rows(keys, index, at, namespace):
            self.rows.write(at_us, row, there=False)

    def _encode_rows(
        self, keys: Keys, index: NDArray[Any], at: pa.Array, namespace: str
    ) -> Iterator[tuple[bytes, int]]:
        if isinstance(at, pa.ChunkedArray):
            at = at.combine_chunks()
        if not isinstance(at, pa.Array) or not pa.types.is_timestamp(at.type) or len(at) != len(index):
            given = f"{at.type} of {len(at)} rows" if isinstance(at, pa.Array) else type(at).__name__
            raise InvalidInputError(
                f"Timers {self.name!r} need an Arrow array of {len(index)} timestamps, got {given}."
            )
        behind = namespace_bytes(namespace)
        try:
            micros = at.cast(pa.timestamp("us", at.type.tz)).cast(pa.int64()).to_pylist()
        except pa.ArrowException as problem:
            raise InvalidInputError(
                f"Timers {self.name!r} count microseconds, but got instants of type {at.type}: {problem}",
                hint="Round them to microseconds.",
            ) from problem
        for suffix, instant in zip(keys.suffixes.each(index).strings(), micros, strict=True):
            if instant is not None:
                yield suffix + behind, instant


def find_left_ms(session: WorkerSession, uid: str) -> dict[Clock, int]:
    """Return, by clock, when the first timers of operator ``uid`` that its program does not declare are due."""
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
