"""Rows of a state whose time to live was removed: their values stay, their stamps are dropped.

Stamps are ignored, and a row loses its stamp when it is written. The expiry index tells which rows have stamps. Until
the index is empty, every batch of a partition takes a bounded number of rows from it, oldest first, writes them without
their stamps, and removes them from the index.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np

from pyspark_ckpt.operators.declarations.ttl import Ttl
from pyspark_ckpt.operators.encoding.suffixes import different
from pyspark_ckpt.operators.rows.entry_rows import EntryKeys
from pyspark_ckpt.operators.rows.event_time import Times
from pyspark_ckpt.operators.rows.expiry import MAX_BEGUN_BYTES, TimedEntryRows, TimedKeyRows
from pyspark_ckpt.operators.rows.list_layout import SEQUENCE, IndexRows, count_on, encode_numbers
from pyspark_ckpt.operators.rows.list_rows import StampedListRows
from pyspark_ckpt.operators.rows.ordered_rows import INSTANT, decode_ordered_keys
from pyspark_ckpt.operators.rows.ttl_stamps import Life, Stamps
from pyspark_ckpt.state_store.arrays.cells import Cells
from pyspark_ckpt.state_store.arrays.packed import Packed, side_by_side

if TYPE_CHECKING:
    from pyspark_ckpt.operators.rows.expiry import ExpiryIndex
    from pyspark_ckpt.operators.rows.ttl_stamps import Bools

_ALL = b"\xff" * (INSTANT.size + 1)
"""A bound after every row of an index."""


class EndlessLife(Life):
    """The life of rows that never expire, although earlier programs gave some of them a stamp."""

    def __init__(self) -> None:
        """Let nothing expire, whatever the time."""
        super().__init__(Ttl(timedelta(milliseconds=1), show_expired=True), 0)

    def stamp(self, value: bytes, _before: bytes | None = None, _times: Times | None = None) -> bytes:
        """Return the value: rows are written without a stamp."""
        return value

    def stamp_cells(self, cells: Cells, _before: Cells, _times: Times | None = None) -> Cells:
        """``stamp`` many values."""
        return cells

    def all_stamped(self, values: Packed, _times: Times | None = None) -> Packed:
        """``stamp`` many values."""
        return values


class FormerlyTimedKeyRows(TimedKeyRows):
    """KeyRows that had a time to live."""

    def sweep(self, most: int) -> int:
        """Drop up to ``most`` stamps. Nothing is freed."""
        for keys in _portions(self._index, most):
            suffixes, _ = different(decode_ordered_keys(keys))
            are_stamped, values = _without_stamps(self._life, self._rows.get_cells(suffixes))
            self._rows.put_cells(suffixes.at(np.flatnonzero(are_stamped)), values)
            self._index.remove_all(keys)
            if _are_many(values):
                break
        return 0


class FormerlyTimedEntryRows(TimedEntryRows):
    """EntryRows that had a time to live."""

    def sweep(self, most: int) -> int:
        """Drop up to ``most`` stamps. Nothing is freed."""
        for keys in _portions(self._index, most):
            at = self._rows.split(different(decode_ordered_keys(keys))[0].packed)
            are_stamped, values = _without_stamps(self._life, self._rows.get_cells(at))
            self._rows.put_writes(at.take(are_stamped), values, 0)
            self._index.remove_all(keys)
            if _are_many(values):
                break
        return 0


class FormerlyTimedListRows(StampedListRows):
    """ListRows that had a time to live."""

    def sweep(self, most: int) -> int:
        """Drop the stamps of up to ``most`` elements, or of one span. Nothing is freed."""
        for portion in self._index.portions(_ALL):
            found = IndexRows.of(portion)
            sizes = found.columns["size"].astype(np.int64)
            found = found.take(np.cumsum(sizes) - sizes < most)
            sizes = sizes[: len(found)]
            suffixes = found.suffixes.take(np.repeat(np.arange(len(found)), sizes))
            numbers = count_on(found.columns["first"], sizes)
            rows = different(side_by_side(suffixes, encode_numbers(numbers)))[0].packed
            at = EntryKeys(rows, rows.size - SEQUENCE.size)
            are_stamped, values = _without_stamps(self._life, self._elements.get_cells(at))
            self._elements.put_writes(at.take(are_stamped), values, 0)
            self._index.remove_all(found.keys)
            most -= int(sizes.sum())
            if most <= 0 or _are_many(values):
                break
        return 0


def _portions(index: ExpiryIndex, most: int) -> Iterator[Packed]:
    """Yield up to ``most`` rows of an index, oldest first, in portions that are not empty."""
    for rows in index.portions(_ALL):
        yield Packed.of([key for key, _ in rows[:most]])
        most -= len(rows)
        if most <= 0:
            break


def _without_stamps(life: Life, stored: Cells) -> tuple[Bools, Cells]:
    """Return which rows have a stamp, and these rows without it."""
    are_stamped = Stamps.of(stored).there
    return are_stamped, life.filter_seen(stored).take(are_stamped)


def _are_many(values: Cells) -> bool:
    """Return whether these values take so much memory that the sweep must end."""
    return int(values.values.size.sum()) >= MAX_BEGUN_BYTES
