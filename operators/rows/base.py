"""What the rows of all kinds of state have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

from pyspark_ckpt.state_store.columns.cells import Cells
from pyspark_ckpt.state_store.columns.packed import Packed
from pyspark_ckpt.state_store.errors import InvalidInputError

Row: TypeAlias = "tuple[bytes, bytes | None]"
"""A key and its value, None for one that is deleted."""
UNREAD: Any = object()
"""Stands for a row that has not been read."""


def merge_rows(
    base: Iterator[tuple[bytes, bytes]], written: Iterable[tuple[bytes, bytes | None]]
) -> Iterator[tuple[bytes, bytes]]:
    """The rows of ``base`` under what was ``written``."""
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


class Position:
    """Which key is being processed, and which ones follow, so that a state can be read for all of them at once."""

    suffix: bytes
    """Of the key; there is none before the first one's turn, nor where many keys are processed at once."""
    key: object
    """The same key, as the user's code is given it."""

    def __init__(self) -> None:
        """None yet."""
        self.upcoming: Sequence[bytes] = ()

    def __getattr__(self, name: str) -> NoReturn:
        """Raise InvalidInputError for the key that is not there. Whatever is there is not asked for here."""
        if name != "suffix":
            raise AttributeError(name)
        raise InvalidInputError(
            "A state or a timer is used for the current key, and no key is being processed.",
            hint="Use it in process() or on_timer(), or call its form for many keys.",
        )


class Moment(NamedTuple):
    """When rows were looked at: how often turns of keys had ended by then, and how often rows had been spilled."""

    turns: int
    spills: int


class BaseRows(Protocol):
    """The rows of the base version and what was spilled on top of them, as a session reads them.

    Keys and prefixes are those of the store: they begin with the number of the state.
    """

    position: Position
    moment: Moment
    new_life: int
    """Names the lives of lists that begin in this session, and none that began in another."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Values, None where there is none; fastest for sorted keys."""

    def get_cells(self, keys: Packed) -> Cells:
        """``get_many`` of keys that rise."""

    def scan(self, prefix: bytes, begin: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Rows whose keys begin with ``prefix``, what follows it from ``begin`` up to ``end``."""

    def portions(self, prefix: bytes, end: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        """Rows of the base version alone, from the first one on, many at once."""

    def hold(self, size_bytes: int) -> None:
        """Say that so many bytes more are held of what was written."""
