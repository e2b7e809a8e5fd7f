"""The rows of a database, state by state and in portions, for work that reads all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice

from pyspark_ckpt.state_store.database import Database
from pyspark_ckpt.state_store.digests import Digest, digest, sum_of
from pyspark_ckpt.state_store.errors import FormatError, StorageError
from pyspark_ckpt.state_store.keys import MARKER_KEY, STATE_BYTES, state_head, state_range
from pyspark_ckpt.state_store.meta import State, StoreMeta

PORTION = 4096

Row = tuple[bytes, bytes]


def portions(database: Database, begin: bytes, end: bytes) -> Iterator[list[Row]]:
    """The rows from key ``begin`` up to ``end``, in lists of ``PORTION``. Raises StorageError, FormatError.

    An iterator of the binding that has met an error just ends: so it is asked what follows the last row.
    """
    remaining = iter(database.scan(begin, end))
    last = begin
    while portion := list(islice(remaining, PORTION)):
        yield portion
        last = portion[-1][0]
    for key, _ in islice(database.rows_in(last, end), 2):
        if key != last:
            raise StorageError(f"The rows of {database.folder} behind {last.hex()} could not be read.")


def rows_between(database: Database, begin: bytes, end: bytes) -> Iterator[Row]:
    """The rows from key ``begin`` up to ``end``. Raises as ``portions``."""
    return chain.from_iterable(portions(database, begin, end))


def portions_of(database: Database, state: State) -> Iterator[list[Row]]:
    """All rows of a state, in key order. Raises as ``portions``."""
    return portions(database, *state_range(state.number))


def digests_of(database: Database, states: Sequence[State]) -> dict[str, Digest]:
    """Digests of all rows of some states."""
    return {state.name: digest_of(database, state) for state in states}


def digest_of(database: Database, state: State, take: Callable[[list[Row]], None] = lambda _rows: None) -> Digest:
    """Digest of all rows of a state; ``take`` gets them, portion by portion. Raises as ``portions``."""
    count, total = 0, 0
    for portion in portions_of(database, state):
        count += len(portion)
        total += sum_of(portion)
        take(portion)
    return digest(count, total)


def renumbered(rows: Iterable[Row], number: int) -> Iterator[Row]:
    """Rows of one state as those of the state ``number``."""
    head = state_head(number)
    return ((head + key[STATE_BYTES:], value) for key, value in rows)


def refuse_stray_rows(database: Database, meta: StoreMeta, what: str) -> None:
    """Raise FormatError if ``what`` has rows that are of none of the states that ``meta`` knows."""
    stray = _stray_keys(database, meta)
    if stray:
        raise FormatError(f"{what} has rows of states that it does not know: {stray}.")


def _stray_keys(database: Database, meta: StoreMeta) -> list[bytes]:
    """A few keys of rows that are of none of the states that ``meta`` knows, and not the marker's."""
    ends = [(b"", MARKER_KEY), *sorted(map(state_range, (state.number for state in meta.states)))]
    gaps = [(first, second) for (_, first), (second, _) in zip(ends, [*ends[1:], (b"\xff" * 8, b"")], strict=True)]
    return [
        key
        for begin, end in gaps
        if begin < end
        for key, _ in islice(database.rows_in(begin, end), PORTION)
        if key != MARKER_KEY
    ][:3]


def require_counts(meta: StoreMeta, digests: Mapping[str, Digest], what: str) -> None:
    """Raise FormatError if ``what`` has not as many rows of a state as its commit says: none was passed over."""
    for state in meta.states:
        if state.is_counted and state.name in digests and digests[state.name].rows != state.rows:
            raise FormatError(
                f"{what}: state {state.name!r} has {digests[state.name].rows} rows, and its commit says {state.rows}.",
                hint="Verify the source (pyspark-ckpt checkpoint verify).",
            )
