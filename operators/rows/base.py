"""What the rows of all kinds of state have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeAlias

from pyspark_ckpt.operators.rows.event_time import EventTime
from pyspark_ckpt.state_store.arrays.cells import Cells
from pyspark_ckpt.state_store.arrays.packed import Packed
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Row: TypeAlias = "tuple[bytes, bytes | None]"
"""A key and its value; the value is None if the row is deleted."""
UNREAD: Any = object()
"""Stands for a row that has not been read."""


def merge_rows(
    base: Iterator[tuple[bytes, bytes]], written: Iterable[tuple[bytes, bytes | None]]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of ``base``, with those ``written`` in place of older ones. Both are sorted by key."""
    row = next(base, None)
    for entry, value in written:
        while row is not None and row[0] < entry:
            yield row
            row = next(base, None)
        if row is not None and row[0] == entry:
            row = next(base, None)
        if value is not None:
            yield entry, value
    while row is not None:
        yield row
        row = next(base, None)


class _NoKey:
    """A suffix that no row can be read or written with: both begin with a look-up, or with a longer key made of it."""

    def __hash__(self) -> int:
        raise _no_key_error()

    def __add__(self, _more: object) -> NoReturn:
        raise _no_key_error()


def _no_key_error() -> InvalidInputError:
    return InvalidInputError(
        "A state or a timer is used for the current key, but no key is being processed.",
        hint="Use it in process() or on_timer(), or call its form for many keys. Broadcast rows have no key.",
    )


NO_KEY: Any = _NoKey()
"""The suffix while no key is being processed. Whoever uses it gets InvalidInputError."""


class Position:
    """The key that is being processed, and those that follow: a state is read for all of them at once."""

    def __init__(self) -> None:
        """Begin before the turn of the first key."""
        self.suffix: bytes = NO_KEY
        """The suffix of the key. NO_KEY before the turn of the first key, and when many keys are processed at once."""
        self.key: object = None
        """The same key, as the user's code sees it; None with NO_KEY."""
        self.upcoming: Sequence[bytes] = ()
        self.time = EventTime(0)
        """The event time of the call, which states with a time to live in event time read and write by."""
        self.takes_broadcast = False
        """Whether the rows of the broadcast input are being processed, which alone may change broadcast states."""


class Moment(NamedTuple):
    """When rows were read: how many turns of keys had ended by then, and how often rows had been spilled."""

    turns: int
    spills: int


class BaseRows(Protocol):
    """The rows that a session reads: those of the base version, and spilled rows in place of older ones.

    Keys and prefixes are those of the store: they begin with the number of the state.
    """

    position: Position
    moment: Moment
    partition: int
    version: int
    """The version that the task's commit makes."""
    new_life: int
    """The life of lists that begin in this session. Lists of other sessions have other lives."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of ``keys``, None where absent. Sorted keys are fastest."""

    def get_cells(self, keys: Packed) -> Cells:
        """``get_many`` for keys in ascending order."""

    def scan(self, prefix: bytes, begin: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Return the rows whose keys are ``prefix`` and an entry from ``begin`` up to ``end`` (exclusive)."""

    def portions(self, prefix: bytes, end: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield rows of the base version alone, up to entry ``end``, in portions."""

    def ends_of_keys(self, rows: Packed) -> NDArray[np.int64]:
        """Return where the suffix ends in each row, a suffix and an entry. Raises FormatError for any other row."""

    def hold(self, size_bytes: int) -> None:
        """Note that ``size_bytes`` more of written rows are held in memory."""
