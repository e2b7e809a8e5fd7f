"""Declared states in a running task, bound to the task's rows and to its current key."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from pyspark_ckpt.operators.bound.removed_ttl import (
    EndlessLife,
    FormerlyTimedEntryRows,
    FormerlyTimedKeyRows,
    FormerlyTimedListRows,
)
from pyspark_ckpt.operators.declarations.states import Declared
from pyspark_ckpt.operators.declarations.timers import MICROSECONDS, to_microseconds
from pyspark_ckpt.operators.encoding.evolution import EvolvedCodec, Schemas, read_schemas
from pyspark_ckpt.operators.encoding.value_codec import ValueCodec, make_value_codec
from pyspark_ckpt.operators.rows.entry_rows import EntryRows
from pyspark_ckpt.operators.rows.event_time import FIRST_MS, Times
from pyspark_ckpt.operators.rows.expiry import ExpiryIndex, TimedEntryRows, TimedKeyRows
from pyspark_ckpt.operators.rows.key_rows import KeyRows
from pyspark_ckpt.operators.rows.list_rows import ListRows, TimedListRows
from pyspark_ckpt.operators.rows.state_rows import Staged, StateRows
from pyspark_ckpt.operators.rows.ttl_stamps import EventLife, Life
from pyspark_ckpt.operators.types.columns import arrow_values
from pyspark_ckpt.operators.types.conversions import CONVERT, WRONG_VALUE
from pyspark_ckpt.operators.types.exact_columns import exact_column
from pyspark_ckpt.operators.types.stored_types import arrow_type
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.declarations.instants import InstantLike, InstantsLike
    from pyspark_ckpt.operators.encoding.distinct_keys import Keys
    from pyspark_ckpt.operators.rows.base import Position
    from pyspark_ckpt.operators.rows.event_time import EventTime
    from pyspark_ckpt.operators.session.worker import WorkerSession

_LAST_US = (1 << 63) - 1
"""The last instant of a timestamp, in microseconds since 1970."""


@dataclass(frozen=True)
class Binding:
    """A state with its declared types (``kinds``), the numbers of its rows and of its expiry index, and the session."""

    state: Declared
    kinds: Mapping[str, pa.DataType]
    number: int
    index: int | None
    session: WorkerSession

    @property
    def whose(self) -> str:
        """The state's name in messages."""
        return f"state {self.state.name!r}"

    def schemas(self, what: str) -> Schemas | None:
        """Return all types with which ``what`` was ever written, from the descriptor. Raises FormatError."""
        return read_schemas(self.session.descriptors[self.number], what, self.whose)

    @property
    def aliases(self) -> Mapping[str, str]:
        """The former names of fields, including those that earlier programs declared."""
        stored = self.session.descriptors[self.number].aliases
        return {} if stored is UNSET else stored


class Kept(Protocol):
    """A bound declaration that keeps rows in the store."""

    @property
    def rows(self) -> StateRows:
        """Its rows."""

    @property
    def index(self) -> Staged | None:
        """The expiry index of its rows, if they have a time to live."""


class Bound:
    """A bound state: how its values are written. Each kind has ``rows`` of its own, as a Kept has."""

    def __init__(self, binding: Binding) -> None:
        """Raises InvalidInputError if stored values cannot be read as the declared type."""
        state, session = binding.state, binding.session
        self.name = state.name
        self._uid = session.descriptors[binding.number].encoder.get("keyed", "")
        self._number = binding.number
        self._kinds = binding.kinds
        *_, self._what = binding.kinds  # the values; the keys of a map come first
        self._codec = self._codec_of_values(binding)
        self._at: Position = session.position
        self._session = session
        self._life = _make_life(binding)
        self._time = session.position.time if isinstance(self._life, EventLife) else None
        """The event time of calls, if rows live by it."""
        self.index = None if binding.index is None else ExpiryIndex(binding.index, session)

    def put_contents(self, keys: Keys, contents: pa.Array) -> None:
        """Set the whole contents of each of ``keys``, which are empty: a value, an accumulator, an array or a map.

        Null leaves a key empty. Raises InvalidInputError (contents that do not fit the type of the state).
        """
        raise NotImplementedError

    def _as_of(self, at: InstantLike) -> AbstractContextManager[None]:
        """Read and write as of an instant within. Raises InvalidInputError (no instant; no ttl in event time)."""
        return self._event_time().at(self._read_at_ms(at))

    def _times(self, keys: Keys, index: NDArray[Any] | None = None, at: InstantsLike = None) -> tuple[Any, ...]:
        """Return, as arguments, the times of rows of ``keys``, or of their ``index``; empty without event time.

        ``at``: an instant for all, or one for each, in place of the times of the call. Raises InvalidInputError.
        """
        if self._time is None and at is None:
            return ()
        time = self._event_time()
        times = time.of_keys(keys) if index is None else time.of_rows(keys, index)
        return (times if at is None else self._replace(times, at),)

    def _replace(self, times: Times, at: InstantsLike) -> Times:
        """Return ``times``, replaced by the instants that a program gives; null leaves a time as it is."""
        count = len(times.reads_ms)
        if not isinstance(at, (pa.Array, pa.ChunkedArray)):
            return Times(*(np.full(count, self._read_at_ms(at)),) * 2)
        column = at.combine_chunks() if isinstance(at, pa.ChunkedArray) else at
        if not pa.types.is_timestamp(column.type) or len(column) != count:
            raise InvalidInputError(
                f"State {self.name!r}: at= is {column.type} of {len(column)} rows.",
                hint=f"Give an Arrow array of {count} timestamps, or one instant for all.",
            )
        to_micros = pc.CastOptions(pa.timestamp("us", column.type.tz), allow_time_truncate=True)
        try:
            micros = column.cast(options=to_micros).cast(pa.int64())
        except pa.ArrowInvalid as problem:
            raise self._out_of_range(problem) from problem
        given = column.is_valid().to_numpy(zero_copy_only=False)
        at_ms = np.maximum(micros.fill_null(0).to_numpy() // MICROSECONDS, FIRST_MS)
        return Times(*(np.where(given, at_ms, each) for each in times))

    def _read_at_ms(self, at: object) -> int:
        """Return an instant in milliseconds since 1970, the first one if it is earlier."""
        at_us = to_microseconds(at, self._whose_at())
        if abs(at_us) > _LAST_US:
            raise self._out_of_range(f"{at_us // MICROSECONDS:,} ms after 1970")
        return max(FIRST_MS, at_us // MICROSECONDS)

    def _out_of_range(self, problem: object) -> InvalidInputError:
        return InvalidInputError(
            f"{self._whose_at()} an instant that no timestamp can hold: {problem}.",
            hint="Give a datetime, or a number in milliseconds since 1970; not in microseconds or nanoseconds.",
        )

    def _event_time(self) -> EventTime:
        if self._time is None:
            raise InvalidInputError(
                f"State {self.name!r}: at= is given, but the state has no time to live in event time.",
                hint="Leave out at=, or declare the state with ttl=Ttl(..., clock='event').",
            )
        return self._time

    def _whose_at(self) -> str:
        return f"State {self.name!r}: at= is"

    def _key_rows(self) -> KeyRows | TimedKeyRows:
        rows = KeyRows(self._number, self._session)
        if self._life is None or self.index is None:
            return rows
        timed = FormerlyTimedKeyRows if isinstance(self._life, EndlessLife) else TimedKeyRows
        return timed(rows, self._life, self.index)

    def _entry_rows(self) -> EntryRows | TimedEntryRows:
        rows = EntryRows(self._number, self._session)
        if self._life is None or self.index is None:
            return rows
        timed = FormerlyTimedEntryRows if isinstance(self._life, EndlessLife) else TimedEntryRows
        return timed(rows, self._life, self.index)

    def _list_rows(self) -> ListRows:
        if self._life is None or self.index is None:
            return ListRows(self._number, self._session)
        timed = FormerlyTimedListRows if isinstance(self._life, EndlessLife) else TimedListRows
        return timed(self._number, self._session, self._life, self.index)

    def _codec_of_values(self, binding: Binding) -> ValueCodec:
        """Return the codec that reads all schemas with which values were ever written."""
        known = binding.schemas(self._what)
        if known is None:
            return make_value_codec(self._kinds[self._what], whose=binding.whose)
        kinds = [arrow_type(schema) for schema in known.schemas]
        if len(kinds) == 1:
            return make_value_codec(kinds[0], known.current, binding.whose)
        try:
            return EvolvedCodec(kinds, known.current, binding.aliases, binding.whose)
        except InvalidInputError as problem:
            raise InvalidInputError(
                f"State {self.name!r} has a different type in the checkpoint: {problem.message}", hint=problem.hint
            ) from problem

    def _encode(self, value: Any) -> bytes:
        try:
            return self._codec.encode(value)
        except WRONG_VALUE as problem:
            raise self._mismatch(self._what, value, problem) from problem

    def _mismatch(self, what: str, value: Any, problem: object) -> InvalidInputError:
        return InvalidInputError(
            f"State {self.name!r} of operator {self._uid!r}: its {what} is of type {self._kinds[what]}, but "
            f"{repr(value)[:200]} ({type(value).__name__}) is not: {problem}.",
            hint=CONVERT,
        )

    def _column(self, what: str, values: pa.Array, count: int, kind: pa.DataType | None = None) -> pa.Array:
        """Return ``values`` as one array. It must have ``count`` values of the declared type, or of ``kind``."""
        kind = kind or self._kinds[what]
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
            values = pa.array(values)
        try:
            column = exact_column(values, kind) if isinstance(values, pa.Array) else arrow_values(values, kind)
        except WRONG_VALUE as problem:
            shown = values.type if isinstance(values, pa.Array) else values
            raise self._mismatch(what, shown, problem) from problem
        if len(column) != count:
            raise InvalidInputError(f"State {self.name!r}: {len(column)} values are given for {count} keys.")
        return column


def _make_life(binding: Binding) -> Life | None:
    """Return the time to live of a state: an EndlessLife if it has none now, but an index from earlier programs."""
    ttl = binding.state.ttl
    if ttl is None:
        return None if binding.index is None else EndlessLife()
    session = binding.session
    if ttl.clock == "event":
        return EventLife(ttl, session.position.time)
    life = Life(ttl, session.now_ms[ttl.clock])
    session.follow(ttl.clock, life.move)
    return life
