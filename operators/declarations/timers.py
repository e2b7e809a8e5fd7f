"""Timers as a processor declares them: calls at an instant of its own choice, for each key."""

from __future__ import annotations

import operator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from pyspark_ckpt.operators.declarations.states import Declared
from pyspark_ckpt.operators.types.conversions import EPOCH, microseconds_at
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.declarations.ttl import Clock
    from pyspark_ckpt.operators.encoding.keys import Keys

InstantLike: TypeAlias = "datetime | np.datetime64 | int"

CLOCKS: tuple[Clock, ...] = ("event", "processing")
MICROSECONDS = 1000
"""Of a millisecond."""
_MAX_MS = 1 << 62


class Timer(NamedTuple):
    """A timer whose time has come, at the very instant that was registered.

    ``name``: that of the declared Timers. ``at_ms``: the instant in ms since 1970, rounded up; ``early_us``: by how
    many microseconds it is before that.
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
    """The timer of an instant in microseconds since 1970."""
    at_ms = round_up_ms(at_us)
    return Timer(name, namespace, at_ms, at_ms * MICROSECONDS - at_us)


class Timers(Declared):
    """Timers of one clock: "event", the watermark, or "processing", the time at which a batch begins.

    A timer fires once, in the first batch whose clock has reached it, after the batch's rows; for a key, timers of one
    clock fire in the order of time. It fires without new rows, too. Registered twice for the same instant and
    namespace it is one timer. ``at``: a datetime, to the microsecond (a naive one is UTC), or ms since 1970. Clocks go
    by milliseconds.
    """

    change_calls = ("register({})", "register_rows(keys, index, at)")

    def __init__(self, name: str, *, clock: Clock) -> None:
        """Raises InvalidInputError."""
        super().__init__(name)
        if clock not in CLOCKS:
            raise InvalidInputError(f"Timers {name!r}: the clock is {clock!r}, not one of {CLOCKS}.")
        self.clock: Clock = clock

    def register(self, at: InstantLike, namespace: str = "") -> None:
        """Have the current key called at an instant; if it has passed, in this batch. Raises InvalidInputError."""
        self._unbound()

    def delete(self, at: InstantLike, namespace: str = "") -> None:
        """Take a timer of the current key back; no error if there is none. Raises InvalidInputError."""
        self._unbound()

    def register_rows(self, keys: Keys, index: NDArray[Any], at: pa.Array, namespace: str = "") -> None:
        """Have the key at ``keys[index[i]]`` called at the timestamp ``at[i]``, for all i; null registers none."""
        self._unbound()

    def delete_rows(self, keys: Keys, index: NDArray[Any], at: pa.Array, namespace: str = "") -> None:
        """The inverse of ``register_rows``; no error for timers that are not there."""
        self._unbound()


def round_up_ms(micros: int) -> int:
    """Microseconds as the milliseconds that do not come before them."""
    return -(-micros // MICROSECONDS)


def microseconds_of(at: object) -> int:
    """An instant that a timer is set to, in microseconds since 1970. Raises InvalidInputError for what is none."""
    if type(at) is int and abs(at) < _MAX_MS:
        return at * MICROSECONDS
    if isinstance(at, (datetime, np.datetime64)):
        if getattr(at, "nanosecond", 0) and at == at:  # noqa: PLR0124 - of pandas, NaT is a datetime
            raise InvalidInputError(
                f"A timer is set to {at!r}, and timers have microseconds.",
                hint="Round it, by floor('us') or ceil('us').",
            )
        try:
            return microseconds_at(at)
        except (TypeError, ValueError, OverflowError) as problem:
            raise _no_instant(at) from problem
    if isinstance(at, bool) or not hasattr(at, "__index__"):
        raise _no_instant(at)
    try:
        at_ms = operator.index(at)
    except TypeError as problem:  # an array that is no number
        raise _no_instant(at) from problem
    if abs(at_ms) >= _MAX_MS:
        raise _no_instant(at)
    return at_ms * MICROSECONDS


def namespace_bytes(namespace: object) -> bytes:
    """The bytes of a timer's namespace. Raises InvalidInputError for what is no Unicode text."""
    try:
        if isinstance(namespace, str):
            return namespace.encode()
    except UnicodeEncodeError:
        pass
    raise InvalidInputError(
        f"A timer has the namespace {namespace!r} of type {type(namespace).__name__}.", hint="Give Unicode text."
    )


def _no_instant(at: object) -> InvalidInputError:
    return InvalidInputError(
        f"A timer is set to {at!r} of type {type(at).__name__}.",
        hint="Give a datetime of whole microseconds, or milliseconds since 1970.",
    )
