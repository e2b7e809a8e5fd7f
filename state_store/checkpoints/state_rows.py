"""Read all rows of a database, state by state and many rows at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from msgspec import UNSET

from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.arrays.sums import sum_row_hashes
from pyspark_ckpt.state_store.checkpoints.digests import Digest, digest
from pyspark_ckpt.state_store.database import Database
from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.keys import MARKER_KEY, state_range
from pyspark_ckpt.state_store.format.meta import StateMeta, StoreMeta
from pyspark_ckpt.state_store.sst.scan import Sums, scan_rows, sum_range

MAX_STRAY = 4096

Row = tuple[bytes, bytes]


def scan_state(database: Database, number: int, *, readers: int = 1) -> Iterator[PackedRows]:
    """Return all rows of the state with that ``number``, in key order and in portions: see ``scan_rows``."""
    return scan_rows(database, *state_range(number), readers=readers)


def digest_states(database: Database, states: Sequence[StateMeta], known: Sums | None = None) -> dict[str, Digest]:
    """Return the digests of all rows of some states, by name. ``known``: see ``sum_range``."""
    sums: Sums = {} if known is None else known
    return {state.name: digest(*sum_range(database, *state_range(state.number), sums)) for state in states}


@dataclass
class Tally:
    """The rows of a state counted so far: their number, and the sum of their hashes."""

    rows: int = 0
    total: int = 0

    def count(self, rows: PackedRows) -> None:
        """Count more rows."""
        self.rows += len(rows)
        self.total += sum_row_hashes(rows)

    @property
    def digest(self) -> Digest:
        """The digest of all rows counted so far."""
        return digest(self.rows, self.total)


def digest_tallies(tallies: Mapping[str, Tally]) -> dict[str, Digest]:
    """Return the digests of the rows in the tallies of some states, by name."""
    return {name: tally.digest for name, tally in tallies.items()}


def refuse_stray_rows(database: Database, meta: StoreMeta, what: str) -> None:
    """Raise FormatError if ``what`` has rows of a state that ``meta`` does not list."""
    stray = _stray_keys(database, meta)
    if stray:
        raise FormatError(f"{what} has rows of states that its metadata does not list: {stray}.")


def _stray_keys(database: Database, meta: StoreMeta) -> list[bytes]:
    """Return up to three keys of rows, other than the marker, that belong to no state in ``meta``."""
    ends = [(b"", MARKER_KEY), *sorted(map(state_range, (state.number for state in meta.states)))]
    gaps = [(first, second) for (_, first), (second, _) in zip(ends, [*ends[1:], (b"\xff" * 8, b"")], strict=True)]
    return [
        key
        for begin, end in gaps
        if begin < end
        for key, _ in islice(database.rows_in(begin, end), MAX_STRAY)
        if key != MARKER_KEY
    ][:3]


def read_counts(database: Database, meta: StoreMeta) -> dict[str, int]:
    """Return the rows of each state: the number in the commit or, if commits do not count it, RocksDB's own count."""
    return {
        state.name: state.rows if state.is_counted else database.count(*state_range(state.number))
        for state in meta.states
    }


def require_digests(states: Iterable[StateMeta], digests: Mapping[str, Digest], what: str) -> None:
    """Raise FormatError unless the rows of the broadcast ``states`` of ``what`` have the digests of their commit."""
    for state, found in find_other_digests(states, digests):
        raise FormatError(
            f"{what}: broadcast state {state.name!r} was committed with the digest {state.digest}, but its rows have "
            f"the digest {found.sum}."
        )


def find_other_digests(
    states: Iterable[StateMeta], digests: Mapping[str, Digest]
) -> Iterator[tuple[StateMeta, Digest]]:
    """Yield the broadcast states whose rows do not have the digest of their commit, and the digest that they have."""
    for state in states:
        found = digests.get(state.name)
        if state.digest is not UNSET and found is not None and found.sum != state.digest:
            yield state, found


def require_counts(counts: Mapping[str, int], digests: Mapping[str, Digest], what: str) -> None:
    """Raise FormatError if a digest is of another number of rows than ``counts`` has for that state of ``what``."""
    for name, found in digests.items():
        if found.rows != counts[name]:
            raise FormatError(
                f"{what}: state {name!r} has {counts[name]} rows, but {found.rows} were found for its partitions.",
            )
