"""States with any number of rows for each key: lists and maps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain, islice
from operator import add, le
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pyspark_ckpt.operators.state_rows import UNREAD, RowCount, stored
from pyspark_ckpt.state_store.keys import state_head

if TYPE_CHECKING:
    from pyspark_ckpt.operators.key_rows import KeyRows
    from pyspark_ckpt.operators.worker_session import WorkerSession

_NOTHING: Mapping[bytes, bytes | None] = {}
Run: TypeAlias = tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes | None]]
"""Rows that are written: their suffixes, entries and values."""
FLUSHED_AT_ONCE = 4096


class Cleared(NamedTuple):
    """That all rows of a key from entry ``begin`` on are deleted, and what was written first ``since`` then."""

    begin: bytes
    since: set[bytes]


class EntryRows:
    """A state with any number of rows for each key, told apart and ordered by what follows the key's suffix."""

    def __init__(self, number: int, session: WorkerSession) -> None:
        """Read and write state ``number``."""
        self._head = state_head(number)
        self._session = session
        self._written: dict[bytes, dict[bytes, bytes | None]] = {}
        self._runs: list[Run] = []
        """Written later than the others. They wait for a call that needs those of one key."""
        self._cleared: dict[bytes, Cleared] = {}
        self._last_read: tuple[bytes, bytes, bytes | None] = (b"", b"", None)
        self._read: tuple[list[bytes], list[bytes | None]] = ([], [])
        self._count = RowCount(session)

    def get(self, suffix: bytes, entry: bytes) -> bytes | None:
        """One row of a key."""
        value = self.known(suffix, entry)
        if value is UNREAD:
            value = self._session.get_many([self._head + suffix + entry])[0]
            self._last_read = (suffix, entry, value)
        return value

    def get_many(self, suffixes: Sequence[bytes], entries: Sequence[bytes]) -> list[bytes | None]:
        """One row of each of many keys, which may come again."""
        self._unfold()
        if not self._written and not self._cleared:
            head = self._head
            return list(self._read_base([head + s + e for s, e in zip(suffixes, entries, strict=True)]))
        rows: list[bytes | None] = [
            self._written.get(suffix, _NOTHING).get(entry, UNREAD)
            for suffix, entry in zip(suffixes, entries, strict=True)
        ]
        unread = []
        for position, row in enumerate(rows):
            if row is UNREAD:
                if suffixes[position] in self._cleared:
                    rows[position] = None
                else:
                    unread.append(position)
        base = self._read_base([self._head + suffixes[position] + entries[position] for position in unread])
        for position, row in zip(unread, base, strict=True):
            rows[position] = row
        return rows

    def put(self, suffix: bytes, entry: bytes, value: bytes | None, *, there: bool | None = None) -> None:
        """Write one row of a key, None deletes it. ``there``: whether it was there, if that is known."""
        before = self.known(suffix, entry)
        if before is not UNREAD:
            there = before is not None
        elif there is None:
            self._count.unread(self._head + suffix + entry)
        self._count.add((value is not None) - bool(there))
        self._write(suffix, entry, value)

    def put_many(self, suffixes: Sequence[bytes], entries: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """``put`` of many rows, one after the other."""
        for suffix, entry, value in zip(suffixes, entries, values, strict=True):
            self.put(suffix, entry, value)

    def put_run(
        self, suffixes: Sequence[bytes], entries: Sequence[bytes], values: Sequence[bytes | None], change: int
    ) -> None:
        """``put`` of different rows of any keys. ``change``: how many rows more there are then."""
        self._count.add(change)
        self._runs.append((suffixes, entries, values))

    def add(self, suffix: bytes, entries: Sequence[bytes], values: Sequence[bytes]) -> None:
        """``put`` of different rows of one key that are new."""
        self._unfold()
        self._count.add(len(entries))
        written = self._written.get(suffix)
        if written is None:
            written = self._written[suffix] = {}
        if suffix in self._cleared:
            self._cleared[suffix].since.update([entry for entry in entries if entry not in written])
        written.update(zip(entries, values))  # noqa: B905 - a value for each entry

    def remove(self, suffix: bytes, entries: Collection[bytes]) -> None:
        """Delete different rows of one key that are there."""
        self._unfold()
        if suffix in self._written or suffix in self._cleared:
            for entry in entries:
                self.put(suffix, entry, None, there=True)
        else:
            self._written[suffix] = dict.fromkeys(entries)
            self._count.add(-len(entries))

    def known(self, suffix: bytes, entry: bytes) -> bytes | None:
        """What is there, as far as it takes no look-up: else UNREAD."""
        self._unfold()
        value: bytes | None = self._written.get(suffix, _NOTHING).get(entry, UNREAD)
        if value is not UNREAD:
            return value
        if suffix in self._cleared:
            return None
        last = self._last_read
        return last[2] if last[0] == suffix and last[1] == entry else UNREAD

    def scan(self, suffix: bytes, begin: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Rows of a key from entry ``begin`` up to ``end`` (exclusive), in order; lazily, as they were then."""
        self._unfold()
        written = self._written.get(suffix)
        base = iter(()) if suffix in self._cleared else self._session.scan(self._head + suffix, begin, end)
        if not written:
            return base
        inside = sorted(entry for entry in written if entry >= begin and (end is None or entry < end))
        return merged(base, [(entry, written[entry]) for entry in inside])

    def has_rows(self, suffix: bytes, begin: bytes = b"") -> bool:
        """Whether a key has rows from entry ``begin`` on."""
        return next(self.scan(suffix, begin), None) is not None

    def remove_all(self, suffix: bytes, begin: bytes = b"") -> None:
        """Delete all rows of a key, which are from entry ``begin`` on; however many, they take no memory."""
        self._unfold()
        for entry, value in self._written.get(suffix, _NOTHING).items():
            if value is not None:
                self.put(suffix, entry, None)
        if suffix not in self._cleared:
            self._cleared[suffix] = Cleared(begin, set())

    def sweep(self, _most: int, _end_of_key: Callable[[bytes], int]) -> int:
        """Nothing expires."""
        return 0

    @property
    def change(self) -> int:
        """How many rows more there are than in the base version, behind the flush of all that was cleared."""
        return self._count.resolved()

    def flush(self, end: bytes | None, heads: KeyRows | None = None) -> Iterator[tuple[bytes, bytes | None]]:
        """What was written for keys below ``end``, or all of it, in stored order; it is forgotten.

        ``heads``: rows of the same state that stand before all entries of their keys, flushed with them.
        """
        self._count.resolved()
        self._last_read, self._read = (b"", b"", None), ([], [])
        of_heads = {} if heads is None else heads.taken(end)
        if end is None and self._runs and not self._cleared:
            return self._flushed_runs(of_heads)
        return self._flushed(end, of_heads)

    def _flushed_runs(self, of_heads: Mapping[bytes, bytes | None]) -> Iterator[tuple[bytes, bytes | None]]:
        """Everything, as runs: of each there are a few keys at once in the form of rows."""
        heads: Run = list(of_heads), [b""] * len(of_heads), list(of_heads.values())
        written: Run = (
            [suffix for suffix, entries in self._written.items() for _ in entries],
            list(chain.from_iterable(self._written.values())),
            [value for entries in self._written.values() for value in entries.values()],
        )
        runs = list(map(_sorted_run, (heads, written, *self._runs)))
        self._written, self._runs = {}, []
        longest = max((suffixes for suffixes, _, _ in runs), key=len)
        begins = [0] * len(runs)
        for portion in range(FLUSHED_AT_ONCE, len(longest) + FLUSHED_AT_ONCE, FLUSHED_AT_ONCE):
            rows: dict[bytes, bytes | None] = {}
            for number, (suffixes, entries, values) in enumerate(runs):
                begin, end = begins[number], len(suffixes)
                if portion < len(longest):
                    end = bisect_left(suffixes, longest[portion], begin)
                keys = map(add, suffixes[begin:end], entries[begin:end])
                rows.update(zip(keys, values[begin:end], strict=True))
                begins[number] = end
            yield from stored(self._head, rows)

    def _flushed(
        self, end: bytes | None, of_heads: Mapping[bytes, bytes | None]
    ) -> Iterator[tuple[bytes, bytes | None]]:
        self._unfold()
        head = self._head
        for suffix in sorted({*self._written, *self._cleared, *of_heads}):
            if end is None or suffix < end:
                key, entries = head + suffix, self._written.pop(suffix, {})
                if suffix in of_heads:
                    yield key, of_heads[suffix]
                left = self._left_of(suffix, entries) if suffix in self._cleared else ()
                for entry in merge(sorted(entries), left) if left else sorted(entries):
                    yield key + entry, entries.get(entry)

    def _write(self, suffix: bytes, entry: bytes, value: bytes | None) -> None:
        written = self._written.get(suffix)
        if written is None:
            written = self._written[suffix] = {}
        if suffix in self._cleared and entry not in written:
            self._cleared[suffix].since.add(entry)
        written[entry] = value

    def _unfold(self) -> None:
        """Have all that is written by keys."""
        while self._runs:
            for row in zip(*self._runs.pop(0), strict=True):
                self._write(*row)

    def _read_base(self, keys: list[bytes]) -> list[bytes | None]:
        if keys != self._read[0]:
            order = sorted(range(len(keys)), key=keys.__getitem__)
            base: list[bytes | None] = [None] * len(keys)
            for position, row in zip(order, self._session.get_many([keys[n] for n in order]), strict=True):
                base[position] = row
            self._read = keys, base
        return self._read[1]

    def _left_of(self, suffix: bytes, entries: Mapping[bytes, bytes | None]) -> Iterator[bytes]:
        """Entries of the base version that are cleared, and not written."""
        cleared = self._cleared.pop(suffix)
        for entry, _ in self._session.scan(self._head + suffix, cleared.begin):
            is_written = entry in entries
            if not is_written or entry in cleared.since:
                self._count.add(-1)
            if not is_written:
                yield entry


def _sorted_run(run: Run) -> Run:
    """A run by its keys; rows of one key as they come."""
    suffixes, entries, values = run
    if all(map(le, suffixes, islice(suffixes, 1, None))):
        return run
    order = sorted(range(len(suffixes)), key=suffixes.__getitem__)
    return [suffixes[n] for n in order], [entries[n] for n in order], [values[n] for n in order]


def merged(
    base: Iterator[tuple[bytes, bytes]], written: Sequence[tuple[bytes, bytes | None]]
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
