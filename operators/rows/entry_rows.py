"""States with any number of rows per key: lists and maps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import merge
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from typing_extensions import override

from pyspark_ckpt.operators.rows.base import UNREAD, BaseRows, Moment, merge_rows
from pyspark_ckpt.operators.rows.state_rows import ARRAYS_BYTES, ROW_BYTES, FormChoice, RowCount, StateRows, Written
from pyspark_ckpt.state_store.arrays.cells import Cells, join_cells, overlay
from pyspark_ckpt.state_store.arrays.order import in_order
from pyspark_ckpt.state_store.arrays.packed import Packed, concatenate, side_by_side
from pyspark_ckpt.state_store.arrays.writes import Writes, last_of_each, newest
from pyspark_ckpt.state_store.format.keys import state_head

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.rows.key_rows import KeyRows

MAX_WRITES = 4
"""More writes than this are merged, because a read of many rows looks through each of them."""
_NOTHING: Mapping[bytes, bytes | None] = {}


@dataclass(frozen=True, eq=False)
class EntryKeys:
    """The places of rows: ``keys``, each a suffix and an entry, and the lengths of their suffixes."""

    keys: Packed
    suffix_bytes: NDArray[np.int64]

    @classmethod
    def of(cls, suffixes: Packed, entries: Packed) -> EntryKeys:
        """Join each suffix with an entry."""
        return cls(side_by_side(suffixes, entries), suffixes.size)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.keys)

    def take(self, which: slice | NDArray[Any]) -> EntryKeys:
        """Return those at some positions, or where a mask is true."""
        return EntryKeys(self.keys.take(which), self.suffix_bytes[which])

    @property
    def order(self) -> NDArray[np.int64]:
        """Their positions in stored order."""
        return self._in_order[0]

    @property
    def has_twins(self) -> bool:
        """Whether a place occurs twice."""
        return bool(self._in_order[1].any())

    @cached_property
    def _in_order(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        return in_order(self.keys)

    def with_values(self, cells: Cells) -> Iterator[tuple[bytes, bytes, bytes | None]]:
        """Yield the suffix, entry and value of each."""
        for key, size, value in zip(self.keys.strings(), self.suffix_bytes.tolist(), cells.strings(), strict=True):
            yield key[:size], key[size:], value

    def are(self, others: EntryKeys) -> bool:
        """Return whether these are the same places, in the same order and with the same layout in memory."""
        mine, theirs = self.keys, others.keys
        pairs = ((mine.size, theirs.size), (mine.at, theirs.at), (mine.data, theirs.data))
        return all(np.array_equal(one, other) for one, other in pairs)


class EntryWrites(NamedTuple):
    """Rows that are written in one call, no two at one place."""

    at: EntryKeys
    cells: Cells

    def apart(self, end: bytes | None) -> tuple[EntryWrites, EntryWrites]:
        """Return the rows of keys below ``end`` (None: all of them), and the others."""
        if end is None:
            return self, self.take(slice(0))
        order = self.at.order
        cut = bisect_left(self.at.keys.take(order), end)
        return self.take(order[:cut]), self.take(order[cut:])

    def take(self, which: slice | NDArray[Any]) -> EntryWrites:
        """Return those at some positions."""
        return EntryWrites(self.at.take(which), self.cells.take(which))


class Cleared(NamedTuple):
    """A mark that all rows of a key from entry ``begin`` on are deleted. ``since``: entries first written after it."""

    begin: bytes
    since: set[bytes]


class EntryRows(StateRows):
    """A state with any number of rows per key. Their *entries*, which follow the key's suffix, order them.

    Written rows have two forms: by key and entry, which is fast for one row or a few, and arrays, which are fast for
    many. A call that needs the other form converts the rows: see ``FormChoice``.
    """

    def __init__(self, number: int, session: BaseRows) -> None:
        """Read and write state ``number``."""
        self.number = number
        self._head = state_head(number)
        self._session = session
        self._written: dict[bytes, dict[bytes, bytes | None]] = {}
        self._writes: list[EntryWrites] = []
        """Rows that were written later than those by key; the last write wins. A call for one key converts them."""
        self._cleared: dict[bytes, Cleared] = {}
        self._last_read: tuple[bytes, bytes, bytes | None] = (b"", b"", None)
        self._read: tuple[EntryKeys, Cells] | None = None
        self._base: dict[bytes, bytes | None] = {}
        """Rows of the base version that the last call for some rows has read, by suffix and entry."""
        self._choice = FormChoice()
        self._count = RowCount(session)

    def get(self, suffix: bytes, entry: bytes) -> bytes | None:
        """Return one row of a key, None if absent."""
        value = self.peek(suffix, entry)
        if value is UNREAD:
            value = self._session.get_many([self._head + suffix + entry])[0]
            self._last_read = (suffix, entry, value)
        return value

    def get_cells(self, at: EntryKeys) -> Cells:
        """Return many rows. A place may occur more than once."""
        at = self._reuse_order(at)
        self._choose_form(len(at))
        if self._written or self._cleared:
            return Cells.of(self._get_each(at))
        cells = self._read_base(at)
        if len(self._writes) > MAX_WRITES:
            self._writes = [_join_writes(self._writes)]
        for each in self._writes:
            cells = overlay(at.keys, cells, each.at.keys, each.cells)
        return cells

    def _get_each(self, at: EntryKeys) -> list[bytes | None]:
        """``get_cells`` from rows that are kept by key."""
        if self._writes:
            self._prefer_rows()
        keys = at.keys.strings()
        rows: list[bytes | None] = []
        for key, size in zip(keys, at.suffix_bytes.tolist(), strict=True):
            row: bytes | None = self._written.get(key[:size], _NOTHING).get(key[size:], UNREAD)
            rows.append(None if row is UNREAD and key[:size] in self._cleared else row)
        unread = [place for place, row in enumerate(rows) if row is UNREAD]
        if not all(keys[place] in self._base for place in unread):
            sought = sorted({keys[place] for place in unread})
            found = self._session.get_many(list(map(self._head.__add__, sought)))
            self._base = dict(zip(sought, found, strict=True))
        for place in unread:
            rows[place] = self._base[keys[place]]
        return rows

    def _choose_form(self, count: int) -> None:
        """Convert the written rows if a call for ``count`` rows is faster with the other form."""
        if not self._written:
            if self._choice.prefers_rows(count, self._count_in_arrays()):
                self._prefer_rows()
        elif self._has_at_most(count):
            self._to_arrays()

    def _has_at_most(self, count: int) -> bool:
        """Return whether up to ``count`` rows are kept by key, without a look at many more."""
        for rows in self._written.values():
            count -= len(rows)
            if count < 0:
                return False
        return True

    def put(self, suffix: bytes, entry: bytes, value: bytes | None, *, there: bool | None = None) -> None:
        """Write one row of a key; None deletes it. ``there``: whether the row existed before, if that is known."""
        before = self.peek(suffix, entry)
        if before is not UNREAD:
            there = before is not None
        elif there is None:
            self._count.unread(self._head + suffix + entry)
        self._count.add((value is not None) - bool(there))
        self._write(suffix, entry, value)
        self._session.hold(ROW_BYTES + len(value or b""))

    def put_cells(self, at: EntryKeys, cells: Cells) -> None:
        """``put`` many rows, one after another."""
        at = self._reuse_order(at)
        if at.has_twins:
            for suffix, entry, value in at.with_values(cells):
                self.put(suffix, entry, value)
        else:
            before = self.get_cells(at)
            self.put_writes(at, cells, int(cells.there.sum()) - int(before.there.sum()))

    def put_writes(self, at: EntryKeys, cells: Cells, change: int) -> None:
        """``put`` different rows of any keys. ``change``: how many more rows there are afterwards."""
        self._count.add(change)
        self._writes.append(EntryWrites(at, cells))
        self._session.hold(len(at.keys.data) + int(cells.values.size.sum()) + ARRAYS_BYTES * len(at))

    def add(self, suffix: bytes, entries: Sequence[bytes], values: Sequence[bytes]) -> None:
        """``put`` different rows of one key that are new."""
        if self._writes:
            self._prefer_rows()
        self._count.add(len(entries))
        written = self._written.get(suffix)
        if written is None:
            written = self._written[suffix] = {}
        if suffix in self._cleared:
            self._cleared[suffix].since.update([entry for entry in entries if entry not in written])
        written.update(zip(entries, values))  # noqa: B905 - a value for each entry
        self._session.hold(sum(map(len, values)) + ROW_BYTES * len(values))

    def remove(self, suffix: bytes, entries: Collection[bytes]) -> None:
        """Delete different rows of one key that exist."""
        if self._writes:
            self._prefer_rows()
        if suffix in self._written or suffix in self._cleared:
            for entry in entries:
                self.put(suffix, entry, None, there=True)
        else:
            self._written[suffix] = dict.fromkeys(entries)
            self._count.add(-len(entries))

    def peek(self, suffix: bytes, entry: bytes) -> bytes | None:
        """Return the row if no look-up is needed for it, else UNREAD."""
        if self._writes:
            self._prefer_rows()
        value: bytes | None = self._written.get(suffix, _NOTHING).get(entry, UNREAD)
        if value is not UNREAD:
            return value
        if suffix in self._cleared:
            return None
        last = self._last_read
        return last[2] if last[0] == suffix and last[1] == entry else UNREAD

    @property
    def moment(self) -> Moment:
        """The moment of a scan that begins now."""
        return self._session.moment

    def is_still(self, suffix: bytes, entry: bytes, value: bytes, moment: Moment) -> bool:
        """Return whether a row that a scan of ``moment`` found is unchanged; False once the turn of its key is over."""
        if self._session.moment.turns != moment.turns:
            return False
        current = self.peek(suffix, entry)
        if current is UNREAD:
            if self._session.moment.spills == moment.spills:
                return True
            current = self._session.get_many([self._head + suffix + entry])[0]
        return current == value

    def scan(self, suffix: bytes, begin: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Return the rows of a key from entry ``begin`` up to ``end`` (exclusive), in order.

        Lazily, as they were when this was called, whatever is written meanwhile.
        """
        if self._writes:
            self._prefer_rows()
        written = self._written.get(suffix)
        base = iter(()) if suffix in self._cleared else self._session.scan(self._head + suffix, begin, end)
        if not written:
            return base
        inside = sorted(entry for entry in written if entry >= begin and (end is None or entry < end))
        return merge_rows(base, [(entry, written[entry]) for entry in inside])

    def has_rows(self, suffix: bytes, begin: bytes = b"") -> bool:
        """Return whether a key has rows from entry ``begin`` on."""
        return next(self.scan(suffix, begin), None) is not None

    def remove_all(self, suffix: bytes, begin: bytes = b"") -> None:
        """Delete all rows of a key, which are from entry ``begin`` on. However many they are, this takes no memory."""
        if self._writes:
            self._prefer_rows()
        for entry, value in self._written.get(suffix, _NOTHING).items():
            if value is not None:
                self.put(suffix, entry, None)
        if suffix not in self._cleared:
            self._cleared[suffix] = Cleared(begin, set())

    def split(self, rows: Packed) -> EntryKeys:
        """Return the places of rows, each given as a suffix and an entry. Raises FormatError for any other row."""
        return EntryKeys(rows, self._session.ends_of_keys(rows))

    @property
    @override
    def change(self) -> int:
        return self._count.resolve()

    def flush(self, end: bytes | None, heads: KeyRows | None = None) -> Written:
        """See Staged. ``heads``: rows of the same state that precede all entries of their keys, flushed with them."""
        self._count.resolve()
        self._last_read, self._read, self._base = (b"", b"", None), None, {}
        if self._writes and not self._cleared:
            of_heads = [] if heads is None else [heads.take_arrays(end)]
            return newest([each.prefix(self._head) for each in (*of_heads, *self._take_writes(end))])
        return self._flush_rows(end, {} if heads is None else heads.take(end))

    def _take_writes(self, end: bytes | None) -> Iterator[Writes]:
        """Yield and forget what was written for keys below ``end``, call by call."""
        self._to_arrays()
        writes, self._writes = self._writes, []
        for each in writes:
            below, left = each.apart(end)
            if len(left.at):
                self._writes.append(left)
            yield Writes(below.at.keys, below.cells)

    def _flush_rows(
        self, end: bytes | None, of_heads: Mapping[bytes, bytes | None]
    ) -> Iterator[tuple[bytes, bytes | None]]:
        self._to_rows()
        head = self._head
        for suffix in sorted({*self._written, *self._cleared, *of_heads}):
            if end is None or suffix < end:
                key, entries = head + suffix, self._written.pop(suffix, {})
                if suffix in of_heads:
                    yield key, of_heads[suffix]
                left = self._scan_cleared(suffix, entries) if suffix in self._cleared else ()
                for entry in merge(sorted(entries), left) if left else sorted(entries):
                    yield key + entry, entries.get(entry)

    def _write(self, suffix: bytes, entry: bytes, value: bytes | None) -> None:
        written = self._written.get(suffix)
        if written is None:
            written = self._written[suffix] = {}
        if suffix in self._cleared and entry not in written:
            self._cleared[suffix].since.add(entry)
        written[entry] = value

    def _to_arrays(self) -> None:
        """Convert rows by key to arrays, if nothing is cleared."""
        count = sum(map(len, self._written.values()))
        if count and not self._cleared:
            written = [(suffix, *row) for suffix, rows in self._written.items() for row in rows.items()]
            keys = Packed.of([suffix + entry for suffix, entry, _ in written])
            suffix_bytes = np.fromiter((len(suffix) for suffix, _, _ in written), np.int64, count)
            self._writes.insert(
                0, EntryWrites(EntryKeys(keys, suffix_bytes), Cells.of([value for _, _, value in written]))
            )
            self._written = {}

    def _prefer_rows(self) -> None:
        """Convert all writes to rows by key. If these take too much memory, all are spilled instead."""
        self._session.hold(ROW_BYTES * self._count_in_arrays())
        self._to_rows()

    def _count_in_arrays(self) -> int:
        return sum(len(each.at) for each in self._writes)

    def _to_rows(self) -> None:
        """Convert all writes to rows by key. After a failure midway, the next call begins again."""
        for each in self._writes:
            for row in each.at.with_values(each.cells):
                self._write(*row)
        self._writes = []

    def _reuse_order(self, at: EntryKeys) -> EntryKeys:
        """Return the places of the last read if ``at`` is the same ones: their order is known."""
        return self._read[0] if self._read is not None and self._read[0].are(at) else at

    def _read_base(self, at: EntryKeys) -> Cells:
        if self._read is None or self._read[0] is not at:
            order = at.order
            stored = self._session.get_cells(at.keys.take(order).prefix(self._head))
            place = np.empty(len(order), np.int64)
            place[order] = np.arange(len(order))
            self._read = at, stored.take(place)
        return self._read[1]

    def _scan_cleared(self, suffix: bytes, entries: Mapping[bytes, bytes | None]) -> Iterator[bytes]:
        """Yield entries of the base version that are cleared and not written."""
        cleared = self._cleared.pop(suffix)
        for entry, _ in self._session.scan(self._head + suffix, cleared.begin):
            is_written = entry in entries
            if not is_written or entry in cleared.since:
                self._count.add(-1)
            if not is_written:
                yield entry


def _join_writes(writes: Sequence[EntryWrites]) -> EntryWrites:
    """Merge writes. If they share a place, the last one wins."""
    keys = concatenate([each.at.keys for each in writes])
    last, suffix_bytes = last_of_each(keys), np.concatenate([each.at.suffix_bytes for each in writes])
    cells = join_cells([each.cells for each in writes])
    return EntryWrites(EntryKeys(keys, suffix_bytes), cells).take(last)
