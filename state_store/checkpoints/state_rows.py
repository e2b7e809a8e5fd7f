"""The rows of a database, state by state and many at once, for work that reads all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from pyspark_ckpt.state_store.checkpoints.digests import Digest, digest
from pyspark_ckpt.state_store.columns.rows import RowColumns
from pyspark_ckpt.state_store.columns.sums import sum_of
from pyspark_ckpt.state_store.database import Database
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.keys import MARKER_KEY, state_range
from pyspark_ckpt.state_store.format.meta import State, StoreMeta
from pyspark_ckpt.state_store.sst.scan import Sums, columns_of, sums_of

MAX_STRAY = 4096

Row = tuple[bytes, bytes]


def rows_of(database: Database, number: int, *, readers: int = 1) -> Iterator[RowColumns]:
    """All rows of the state of that number, in key order and in portions: see ``columns_of``."""
    return columns_of(database, *state_range(number), readers=readers)


def digests_of(database: Database, states: Sequence[State], known: Sums | None = None) -> dict[str, Digest]:
    """Digests of all rows of some states; ``known``: see ``sums_of``."""
    sums: Sums = {} if known is None else known
    return {state.name: digest(*sums_of(database, *state_range(state.number), sums)) for state in states}


def proven(portions: Iterable[RowColumns], name: str, digests: dict[str, Digest]) -> Iterator[RowColumns]:
    """The same rows; when all have been taken, ``digests`` has theirs under the ``name`` of their state."""
    count, total = 0, 0
    for portion in portions:
        count += len(portion)
        total += sum_of(portion)
        yield portion
    digests[name] = digest(count, total)


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
        for key, _ in islice(database.rows_in(begin, end), MAX_STRAY)
        if key != MARKER_KEY
    ][:3]


def counts_of(database: Database, meta: StoreMeta) -> dict[str, int]:
    """How many rows of each state there are: what the commit says or, where nobody counts them, what RocksDB finds."""
    return {
        state.name: state.rows if state.is_counted else database.count(*state_range(state.number))
        for state in meta.states
    }


def require_counts(counts: Mapping[str, int], digests: Mapping[str, Digest], what: str) -> None:
    """Raise FormatError if ``digests`` are not of as many rows of a state as there are in ``what``."""
    for name, found in digests.items():
        if found.rows != counts[name]:
            raise FormatError(
                f"{what}: state {name!r} has {counts[name]} rows, and {found.rows} were found for its partitions.",
                hint="Verify the source (pyspark-ckpt checkpoint verify).",
            )
