"""The rows of a list: one per element, and a head before them that counts all elements that were ever appended.

With a time to live, the elements of one instant that one batch appends to a list are one *span* in the expiry index,
and are freed without being read: see ``list_layout``. Reads that refresh elements break spans. If reads refresh
elements, each element therefore has its own index row, and a list with spans records in its head that such reads have
occurred.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from pyspark_ckpt.operators.encoding.suffixes import Suffixes, different
from pyspark_ckpt.operators.rows.base import BaseRows
from pyspark_ckpt.operators.rows.entry_rows import EntryKeys, EntryRows
from pyspark_ckpt.operators.rows.event_time import Times
from pyspark_ckpt.operators.rows.expiry import MAX_BEGUN_BYTES, ExpiryIndex, TimedEntryRows
from pyspark_ckpt.operators.rows.key_rows import KeyRows
from pyspark_ckpt.operators.rows.list_layout import (
    SEQUENCE,
    SPAN_BIT,
    SPAN_ELEMENTS,
    Bools,
    Elements,
    Head,
    Heads,
    IndexRows,
    Numbers,
    Places,
    count_on,
    different_elements,
    encode_numbers,
    span,
    span_key,
    spans,
)
from pyspark_ckpt.operators.rows.ordered_rows import encode_ordered_key, encode_ordered_keys
from pyspark_ckpt.operators.rows.state_rows import StateRows, Written
from pyspark_ckpt.operators.rows.ttl_stamps import Life, Stamps
from pyspark_ckpt.state_store.arrays.cells import Cells
from pyspark_ckpt.state_store.arrays.packed import Packed, side_by_side

if TYPE_CHECKING:
    from numpy.typing import NDArray


FIRST = SEQUENCE.pack(0)


class ListRows(StateRows):
    """Lists whose elements live until they are cleared."""

    def __init__(self, number: int, session: BaseRows) -> None:
        """Read and write state ``number``."""
        self.number = number
        self._heads = KeyRows(number, session)
        self._elements = EntryRows(number, session)

    def get(self, suffix: bytes) -> Iterator[bytes]:
        """Return the elements of a key, lazily, as they are now."""
        return self._behind(suffix, self._head(suffix))

    def get_many(self, suffixes: Suffixes) -> Iterator[Iterator[bytes]]:
        """``get`` for many keys, which are in stored order."""
        for suffix, stored in zip(suffixes, self._heads.get_cells(suffixes).strings(), strict=True):
            yield self._behind(suffix, Head.decode(stored))

    def append(self, suffix: bytes, elements: Sequence[bytes]) -> None:
        """Append elements to the list of a key."""
        if elements:
            head = self._head(suffix)
            self._heads.put(suffix, self._append(suffix, head, elements).encode())

    def append_many(self, suffixes: Suffixes, counts: NDArray[np.int64], elements: Packed) -> None:
        """Append elements to many lists, whose keys are in stored order. ``counts``: how many each list gets."""
        heads = Heads.decode(self._heads.get_cells(suffixes))
        appended = self._append_many(suffixes, heads, counts, elements)
        self._heads.put_cells(suffixes, Cells.present(appended.encode()))

    def clear(self, suffix: bytes) -> None:
        """Remove all elements of a key. However many they are, this takes no memory."""
        if self._head(suffix).end:
            self._elements.remove_all(suffix, FIRST)
            self._heads.put(suffix, None)

    def clear_many(self, suffixes: Suffixes) -> None:
        """``clear`` many keys, which are in stored order."""
        filled = suffixes.at(np.flatnonzero(self._ends(suffixes)))
        for suffix in filled:
            self._elements.remove_all(suffix, FIRST)
        self._heads.put_cells(filled, Cells.absent(len(filled)))

    def exist_many(self, suffixes: Suffixes) -> Bools:
        """Return whether each of many keys, which are in stored order, has an element."""
        return self._ends(suffixes) > 0

    @property
    @override
    def change(self) -> int:
        return self._heads.change + self._elements.change

    @override
    def flush(self, end: bytes | None) -> Written:
        return self._elements.flush(end, self._heads)

    def _ends(self, suffixes: Suffixes) -> Numbers:
        return Heads.decode(self._heads.get_cells(suffixes)).end

    def _head(self, suffix: bytes) -> Head:
        return Head.decode(self._heads.get(suffix))

    def _behind(self, suffix: bytes, head: Head) -> Iterator[bytes]:
        """Return the elements of the list that has this head."""
        if head.end == 0:
            return iter(())
        return (element for _, element in self._elements.scan(suffix, FIRST))

    def _append(self, suffix: bytes, head: Head, elements: Sequence[bytes]) -> Head:
        """Write elements after those that ``head`` counts. Return the new head."""
        begin, life, is_refreshed = head
        end = begin + len(elements)
        self._elements.add(suffix, list(map(SEQUENCE.pack, range(begin, end))), elements)
        return Head(end, life, is_refreshed)

    def _append_many(self, suffixes: Suffixes, heads: Heads, counts: NDArray[np.int64], elements: Packed) -> Heads:
        """``_append`` for many keys. ``counts``: how many elements each list gets."""
        places = np.repeat(np.arange(len(suffixes)), counts)
        at = EntryKeys.of(suffixes.packed.take(places), encode_numbers(count_on(heads.end, counts)))
        self._elements.put_writes(at, Cells.present(elements), len(elements))
        return Heads(heads.end + counts.astype(np.uint64), heads.life, heads.is_refreshed)


class StampedListRows(ListRows):
    """Lists with elements that may have stamps. Those that are appended get none."""

    def __init__(self, number: int, session: BaseRows, life: Life, index: ExpiryIndex) -> None:
        """``index`` finds the elements with stamps, which ``life`` reads."""
        super().__init__(number, session)
        self._life, self._index = life, index
        self._timed = TimedEntryRows(self._elements, life, index)

    def get_many(self, suffixes: Suffixes, times: Times | None = None) -> Iterator[Iterator[bytes]]:
        """See ListRows. ``times``: of each list; None: those of the call."""
        stored = self._heads.get_cells(suffixes).strings()
        for place, (suffix, head) in enumerate(zip(suffixes, stored, strict=True)):
            yield self._behind(suffix, Head.decode(head), times and times.take(place))

    def exist_many(self, suffixes: Suffixes, times: Times | None = None) -> Bools:
        """See ListRows. Expired elements do not count. The first one that lives counts as read."""
        found = super().exist_many(suffixes)
        for place in np.flatnonzero(found).tolist():
            suffix = suffixes[place]
            elements = self._behind(suffix, self._head(suffix), times and times.take(place))
            found[place] = next(elements, None) is not None
        return found

    def _behind(self, suffix: bytes, head: Head, times: Times | None = None) -> Iterator[bytes]:
        """See ListRows. Expired elements are left out."""
        if head.end == 0:
            return iter(())
        return (element for _, element in self._timed.scan(suffix, FIRST, times=times))


class TimedListRows(StampedListRows):
    """Lists whose elements each have a time to live of their own."""

    def __init__(self, number: int, session: BaseRows, life: Life, index: ExpiryIndex) -> None:
        """Update ``index`` as elements are written."""
        super().__init__(number, session, life, index)
        self._new_life = session.new_life
        """The life of lists whose first span this task writes. To clear such a list removes its spans, too."""
        self._spans: dict[bytes, list[tuple[int, int]]] = {}
        """The spans that this task has written, by list: their instants and first elements."""
        self._new_spans: tuple[Suffixes, NDArray[np.int64], Numbers] | None = None
        """The same for lists that have one span each and are not in ``_spans`` yet."""

    def clear(self, suffix: bytes) -> None:
        """See ListRows. Index rows of elements of earlier batches stay until they expire."""
        self._remove_spans(suffix)
        super().clear(suffix)

    @override
    def clear_many(self, suffixes: Suffixes) -> None:
        if self._spans_of_keys():
            for suffix in suffixes:
                self._remove_spans(suffix)
        super().clear_many(suffixes)

    @override
    def flush(self, end: bytes | None) -> Written:
        if end is None:
            self._spans, self._new_spans = {}, None
        else:
            self._spans = {suffix: firsts for suffix, firsts in self._spans_of_keys().items() if suffix >= end}
        return super().flush(end)

    def spill(self) -> Written:
        """See Staged. The spans of a list whose turn is not over may still grow."""
        return super().flush(None)

    def sweep(self, most: int) -> int:
        """Free up to ``most`` expired elements, or one span. Return how many."""
        found = IndexRows.join(list(self._scan_expired(most)))
        if not len(found):
            return 0
        suffixes, at = different(found.suffixes)
        heads = Heads.decode(self._heads.get_ahead(suffixes))
        are_spans = found.columns["is_span"]
        are_there = are_spans & (found.columns["life"] == heads.life[at])
        dead = [
            self._dead_alone(found, at, ~are_spans),
            self._dead_in_spans(found, at, are_there & ~heads.is_refreshed[at]),
            self._dead_of_read(found, at, are_there & heads.is_refreshed[at]),
        ]
        self._index.remove_all(found.keys.take(are_spans))
        return self._free(suffixes, heads, *different_elements(*zip(*dead, strict=True)))

    def _scan_expired(self, most: int) -> Iterator[IndexRows]:
        """Yield index rows of up to ``most`` elements, or of one span. Begin the lives of spans that have not begun."""
        begun_bytes = 0
        for portion in self._index.scan_expired(self._life):
            rows = IndexRows.of(portion)
            # Rows that were written with a longer time to live have longer steps.
            are_over = rows.last_ms <= self._life.dead_ms
            are_asked = are_over | (self._life.begins_now & (rows.columns["instant"] == 0))
            rows, are_over = rows.take(are_asked), are_over[are_asked]
            sizes = rows.columns["size"].astype(np.int64)
            are_taken = np.cumsum(sizes) - sizes < most
            self._index.give_back([portion[place] for place in np.flatnonzero(are_asked)[~are_taken].tolist()])
            if self._life.begins_late:
                are_unbegun = are_taken & rows.columns["is_span"] & (rows.columns["instant"] == 0)
                for position in np.flatnonzero(are_unbegun).tolist():
                    size_bytes = self._begin(rows, position)
                    begun_bytes += size_bytes
                    are_taken[position] = are_over[position] and not size_bytes
                    if begun_bytes >= MAX_BEGUN_BYTES:
                        are_taken[position + 1 :] = False
                        break
            yield rows.take(are_taken)
            most -= int(sizes.sum())
            if most <= 0 or begun_bytes >= MAX_BEGUN_BYTES:
                break

    @override
    def count_expired(self, most: int) -> int:
        dead_ms = self._life.dead_ms
        return self._index.count_expired(self._life, most, lambda rows: IndexRows.of(rows).count_expired(dead_ms))

    def _begin(self, rows: IndexRows, position: int) -> int:
        """Begin the lives of a span's elements that have not begun. Return how many bytes were written."""
        suffix = rows.suffixes[position]
        first, size, life = (int(rows.columns[name][position]) for name in ("first", "size", "life"))
        if self._head(suffix).life != life:
            return 0
        begun_bytes = 0
        entries = encode_numbers(np.arange(first, first + size, dtype=np.uint64))
        elements = self._elements.get_cells(EntryKeys.of(Packed.of([suffix] * size), entries))
        for stored, entry in zip(elements.strings(), entries.strings(), strict=True):
            row = None if stored is None else self._life.begin(stored)
            if row is not None:
                self._elements.put(suffix, entry, row, there=True)
                begun_bytes += len(row)
        if begun_bytes:
            self._index.put(rows.keys[position], there=False)
            self._write_span(suffix, (self._life.index_instant, first), first + size, life)
        return begun_bytes

    def _dead_alone(self, found: IndexRows, at: Places, which: Bools) -> Elements:
        """Return the expired elements of single index rows. Index rows that are out of date are removed or moved."""
        found, at = found.take(which), at[which]
        elements = EntryKeys.of(found.suffixes, encode_numbers(found.columns["first"]))
        change, changes = self._index.settle(found.keys, self._elements.get_cells(elements), self._life)
        begun = np.flatnonzero(change)[changes.there]
        self._elements.put_writes(elements.take(begun), changes.take(changes.there), 0)
        dead = np.flatnonzero(change)[~changes.there]
        return at[dead], found.columns["first"][dead]

    def _dead_in_spans(self, found: IndexRows, at: Places, which: Bools) -> Elements:
        """Return all elements of spans."""
        sizes = found.columns["size"][which].astype(np.int64)
        return np.repeat(at[which], sizes), count_on(found.columns["first"][which], sizes)

    def _dead_of_read(self, found: IndexRows, at: Places, which: Bools) -> Elements:
        """Return the elements of spans except those that reads have refreshed and those that are gone."""
        places, numbers = self._dead_in_spans(found, at, which)
        suffixes = found.suffixes.take(np.repeat(np.flatnonzero(which), found.columns["size"][which].astype(np.int64)))
        stored = self._elements.get_cells(EntryKeys.of(suffixes, encode_numbers(numbers)))
        are_dead = self._life.are_dead(Stamps.of(stored))
        return places[are_dead], numbers[are_dead]

    def _free(self, suffixes: Suffixes, heads: Heads, places: Places, numbers: Numbers) -> int:
        """Remove elements that exist, and return how many. A list that loses its last element loses its head, too.

        They are the elements ``numbers`` of the lists at ``places``, in stored order.
        """
        counts = np.bincount(places, minlength=len(suffixes))
        ends = np.cumsum(counts)
        has_lost = counts > 0
        behind = np.zeros(len(suffixes), np.uint64)
        behind[has_lost] = numbers[ends[has_lost] - 1] + np.uint64(1)
        # The newest element expires last, unless reads have refreshed older ones, or calls were for earlier event
        # times. (If the clock went back or the kind of refresh changed, a head may be left without elements. It stays
        # for the next elements.)
        has_newest = behind < heads.end
        if self._life.keeps_later:
            has_newest &= self._have_newest(suffixes, heads)
        may_be_empty = has_lost & (heads.end > 0) & (~has_newest | heads.is_refreshed | self._life.refreshed_by_reads)
        are_all = ~has_newest & (counts.astype(np.uint64) == heads.end)
        is_asked = may_be_empty & ~are_all
        is_emptied = may_be_empty & are_all
        for place in np.flatnonzero(is_asked).tolist():
            entries = encode_numbers(numbers[ends[place] - counts[place] : ends[place]])
            self._elements.remove(suffixes[place], entries.strings())
            is_emptied[place] = not self._elements.has_rows(suffixes[place], FIRST)
        emptied = suffixes.at(np.flatnonzero(is_emptied))
        self._heads.put_cells(emptied, Cells.absent(len(emptied)))
        are_left = ~is_asked[places]
        at = EntryKeys.of(suffixes.packed.take(places[are_left]), encode_numbers(numbers[are_left]))
        self._elements.put_writes(at, Cells.absent(len(at)), -len(at))
        return len(numbers)

    def _have_newest(self, suffixes: Suffixes, heads: Heads) -> Bools:
        """Return whether lists have the last element that was appended to them."""
        last = np.maximum(heads.end, np.uint64(1)) - np.uint64(1)
        return self._elements.get_cells(EntryKeys.of(suffixes.packed, encode_numbers(last))).there

    def _behind(self, suffix: bytes, head: Head, times: Times | None = None) -> Iterator[bytes]:
        """See StampedListRows. A read that refreshes elements breaks the spans of the list."""
        if self._life.refreshed_by_reads and head.life and not head.is_refreshed:
            self._heads.put(suffix, head._replace(is_refreshed=True).encode())
        return super()._behind(suffix, head, times)

    def append_many(
        self, suffixes: Suffixes, counts: NDArray[np.int64], elements: Packed, times: Times | None = None
    ) -> None:
        """See ListRows. ``times``: of each element; None: those of the call."""
        heads = Heads.decode(self._heads.get_cells(suffixes))
        appended = self._append_many(suffixes, heads, counts, elements, times)
        self._heads.put_cells(suffixes, Cells.present(appended.encode()))

    def _append(self, suffix: bytes, head: Head, elements: Sequence[bytes], times: Times | None = None) -> Head:
        begin, life, is_refreshed = head
        end = super()._append(suffix, head, self._life.stamp_each(elements, times)).end
        runs = self._life.runs(len(elements), times)
        self._index.entered += len(elements)
        if self._life.refreshed_by_reads:
            for instant, first, last in runs:
                for number in range(begin + first, begin + last):
                    self._index.put(encode_ordered_key(instant, suffix + SEQUENCE.pack(number)), there=True)
        else:
            life = life or self._new_life
            known = self._spans_of_keys().setdefault(suffix, [])
            for instant, first, last in runs:
                # They are added to the last span if it is of their instant.
                if not known or known[-1][0] != instant:
                    known.append((instant, begin + first))
                self._write_span(suffix, known[-1], begin + last, life)
                while begin + last - known[-1][1] > SPAN_ELEMENTS:
                    known.append((instant, known[-1][1] + SPAN_ELEMENTS))
                    self._write_span(suffix, known[-1], begin + last, life)
        return Head(end, life, is_refreshed)

    def _append_many(
        self,
        suffixes: Suffixes,
        heads: Heads,
        counts: NDArray[np.int64],
        elements: Packed,
        times: Times | None = None,
    ) -> Heads:
        is_simple = not self._life.refreshed_by_reads and counts.max(initial=0) <= SPAN_ELEMENTS
        instants = self._life.instants_of(counts, times) if is_simple else None
        if instants is None or self._have_spans(suffixes):
            strings = elements.strings()
            parts = [slice(begin, end) for begin, end in pairwise([0, *np.cumsum(counts).tolist()])]
            appended = [
                self._append(suffix, head, strings[part], times and times.take(part))
                for suffix, head, part in zip(suffixes, heads, parts, strict=True)
            ]
            return Heads.of(appended)
        self._index.entered += len(elements)
        life = np.where(heads.life > 0, heads.life, np.uint64(self._new_life))
        self._new_spans = suffixes, instants, heads.end
        at = side_by_side(suffixes.packed, encode_numbers(heads.end | np.uint64(SPAN_BIT)))
        keys = encode_ordered_keys(instants, at)
        self._index.write_all(keys, spans(self._life.step_bits, counts, life))
        stamped = self._life.all_stamped(elements, times)
        return replace(super()._append_many(suffixes, heads, counts, stamped), life=life)

    def _have_spans(self, suffixes: Suffixes) -> bool:
        """Return whether this task has written spans of any of the lists."""
        has_any = bool(self._spans) or self._new_spans is not None
        return has_any and not self._spans_of_keys().keys().isdisjoint(suffixes)

    def _spans_of_keys(self) -> dict[bytes, list[tuple[int, int]]]:
        """Return the spans that this task has written, for all lists."""
        if self._new_spans is not None:
            suffixes, instants, firsts = self._new_spans
            spans_of = zip(instants.tolist(), firsts.tolist(), strict=True)
            self._spans.update(zip(suffixes, ([each] for each in spans_of), strict=True))
            self._new_spans = None
        return self._spans

    def _remove_spans(self, suffix: bytes) -> None:
        """Remove the spans of a list that this task has written."""
        for each in self._spans_of_keys().pop(suffix, ()):
            self._index.put(span_key(suffix, *each), there=False)

    def _write_span(self, suffix: bytes, begins: tuple[int, int], end: int, life: int) -> None:
        size = min(end - begins[1], SPAN_ELEMENTS)
        self._index.write(span_key(suffix, *begins), span(self._life.step_bits, size, life))
