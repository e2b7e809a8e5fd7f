"""Timers as a processor declares them: calls at an instant of its own choice, for each key."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pyspark_ckpt.operators.states import Declared
from pyspark_ckpt.operators.value_types import EPOCH, microseconds_at
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.keys import Keys
    from pyspark_ckpt.operators.ttl import Clock

InstantLike: TypeAlias = "datetime | int"

CLOCKS: tuple[Clock, ...] = ("event", "processing")


class Timer(NamedTuple):
    """A timer whose time has come. ``name``: that of the declared Timers; ``at_ms``: in ms since 1970."""

    name: str
    namespace: str
    at_ms: int

    @property
    def at(self) -> datetime:
        """When it was to fire, as an aware datetime in UTC."""
        return EPOCH + timedelta(milliseconds=self.at_ms)


class Timers(Declared):
    """Timers of one clock: "event", the watermark, or "processing", the time at which a batch begins.

    A timer fires once, in the first batch whose clock has reached it, after the batch's rows; for a key, timers of one
    clock fire in the order of time. It fires without new rows, too. Registered twice for the same instant and
    namespace it is one timer. ``at``: a datetime (a naive one is UTC), rounded up to a millisecond, or ms since 1970.
    """

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


def rounded_up_ms(micros: int) -> int:
    """Microseconds as the milliseconds that do not come before them."""
    return -(-micros // 1000)


def milliseconds_at(at: object) -> int:
    """An instant in ms since 1970. Raises InvalidInputError for what is none."""
    if isinstance(at, datetime):
        return rounded_up_ms(microseconds_at(at))
    if isinstance(at, int) and not isinstance(at, bool) and abs(at) < 1 << 62:
        return at
    raise InvalidInputError(
        f"A timer is set to {at!r} of type {type(at).__name__}.", hint="Give a datetime, or milliseconds since 1970."
    )
