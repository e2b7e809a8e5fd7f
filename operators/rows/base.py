"""What the rows of all kinds of state have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn, TypeAlias

from pyspark_ckpt.state_store.errors import InvalidInputError

UNREAD: Any = object()
"""Stands for a row that has not been read."""


def merged(
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


Row: TypeAlias = "tuple[bytes, bytes | None]"
