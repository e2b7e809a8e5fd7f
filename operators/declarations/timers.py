"""Timers that a processor declares: they call it for a key at a chosen time."""

from __future__ import annotations

import operator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyspark_ckpt.operators.declarations.states import Declared
from pyspark_ckpt.operators.types.conversions import EPOCH, microseconds_at
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.declarations.instants import InstantLike
    from pyspark_ckpt.operators.declarations.ttl import Clock
    from pyspark_ckpt.operators.encoding.distinct_keys import Keys

CLOCKS: tuple[Clock, ...] = ("event", "processing")
MICROSECONDS = 1000
"""In a millisecond."""
_MAX_MS = 1 << 62
_SET = "A timer is set to"


class Timer(NamedTuple):
    """A timer that fires, with the exact instant that was registered, which ``at`` returns.

    ``name``: the name of the declared Timers. ``namespace``: as registered. ``at_ms``: the millisecond since 1970 at
    which it fires, which is the instant rounded up. ``early_us``: by how many microseconds the instant is earlier.
    """

    name: str
    namespace: str
    at_ms: int
    early_us: int = 0

    @property
    def at(self) -> datetime:
        """The instant as an aware datetime in UTC."""
        return EPOCH + timedelta(microseconds=self.at_us)

    @property
    def at_us(self) -> int:
        """The instant in microseconds since 1970."""
        return self.at_ms * MICROSECONDS - self.early_us


def timer_at(name: str, namespace: str, at_us: int) -> Timer:
    """Return the timer of an instant in microseconds since 1970."""
    at_ms = round_up_ms(at_us)
    return Timer(name, namespace, at_ms, at_ms * MICROSECONDS - at_us)


class Timers(Declared):
    """Timers of one clock: "event", the watermark, or "processing", the time at which Spark began the batch.

    A timer fires once, in the first batch whose clock has reached it, after the batch's rows; it needs no new rows. Its
    writes commit with the batch. For a key, timers of one clock fire in time order. The same key, instant and namespace
    are one timer. The processor handles timers in ``on_timer`` or ``process_timers``.

    ``at``: a datetime with microseconds (a naive one is UTC), or whole milliseconds since 1970. Clocks count
    milliseconds. The methods raise InvalidInputError for anything else, LifecycleError outside of a running query.
    """

    change_calls = ("register({})", "register_rows(keys, index, at)")

    def __init__(self, name: str, *, clock: Clock) -> None:
        """Declare timers of ``clock``: "event" (the frame must have a watermark) or "processing".

        Raises InvalidInputError.
        """
        super().__init__(name)
        if clock not in CLOCKS:
            raise InvalidInputError(f"Timers {name!r}: the clock is {clock!r}, not one of {CLOCKS}.")
        self.clock: Clock = clock

    def register(self, at: InstantLike, namespace: str = "") -> None:
        """Register a timer for the current key; one for the past fires in this batch. Raises InvalidInputError."""
        self._unbound()

    def delete(self, at: InstantLike, namespace: str = "") -> None:
        """Delete a timer of the current key; no error if there is none. Raises InvalidInputError."""
        self._unbound()

    def register_rows(self, keys: Keys, index: NDArray[Any], at: pa.Array, namespace: str = "") -> None:
        """Register a timer at the timestamp ``at[i]`` for the key ``keys[index[i]]``, for all i; null adds no timer."""
        self._unbound()

    def delete_rows(self, keys: Keys, index: NDArray[Any], at: pa.Array, namespace: str = "") -> None:
        """Delete the timers that ``register_rows`` would register; no error for those that do not exist."""
        self._unbound()


def round_up_ms(micros: int) -> int:
    """Round microseconds up to milliseconds."""
    return -(-micros // MICROSECONDS)


def to_microseconds(at: object, what: str = _SET) -> int:
    """Return an instant in microseconds since 1970. Raises InvalidInputError about ``what`` for anything else."""
    if type(at) is int and abs(at) < _MAX_MS:
        return at * MICROSECONDS
    if isinstance(at, (datetime, np.datetime64)):
        if getattr(at, "nanosecond", 0) and at == at:  # noqa: PLR0124 - of pandas, NaT is a datetime
            raise InvalidInputError(
                f"{what} {at!r}, which has nanoseconds; states and timers have microseconds.",
                hint="Round it with floor('us') or ceil('us').",
            )
        try:
            return microseconds_at(at)
        except (TypeError, ValueError, OverflowError) as problem:
            raise _no_instant(at, what) from problem
    if isinstance(at, (bool, np.bool_)) or not hasattr(at, "__index__"):
        raise _no_instant(at, what)
    try:
        at_ms = operator.index(at)
    except TypeError as problem:  # an array that is not a single number
        raise _no_instant(at, what) from problem
    if abs(at_ms) >= _MAX_MS:
        raise _no_instant(at, what)
    return at_ms * MICROSECONDS


def namespace_bytes(namespace: object) -> bytes:
    """Return the bytes of a timer's namespace. Raises InvalidInputError unless it is Unicode text."""
    try:
        if isinstance(namespace, str):
            return namespace.encode()
    except UnicodeEncodeError:
        pass
    raise InvalidInputError(
        f"A timer has the namespace {namespace!r} of type {type(namespace).__name__}, which is not Unicode text.",
        hint="Give Unicode text.",
    )


def _no_instant(at: object, what: str) -> InvalidInputError:
    return InvalidInputError(
        f"{what} {at!r} of type {type(at).__name__}, which is not a valid instant.",
        hint="Give a datetime of whole microseconds, or milliseconds since 1970.",
    )
