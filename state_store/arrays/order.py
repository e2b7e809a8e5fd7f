"""Sorts many keys, and merges the rows of several runs into one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pyspark_ckpt.state_store.arrays.packed import WIDEST, WORD, Integers, Packed, Words, concatenate
from pyspark_ckpt.state_store.arrays.rows import PackedRows

WIDE = 64
"""Wider keys are not padded to one width."""
FEW_TIES = 16
"""If more than one key in this number begins with the same eight bytes as another, whole keys are compared."""

Bools = npt.NDArray[np.bool_]


def join_runs(runs: Sequence[Iterator[PackedRows]]) -> Iterator[PackedRows]:
    """Merge runs whose keys rise into one, in key order. No key may be in two runs.

    One portion of each run is in memory at a time. Portions may be empty.
    """
    heads = [(rows, run) for run in runs if (rows := next_portion(run)) is not None]
    while len(heads) > 1:
        cut = min(rows.keys[len(rows) - 1] for rows, _ in heads)
        below, above = [], []
        for rows, run in heads:
            some, rest = part_run(rows, run, cut)
            below.append(some)
            if rest is not None:
                above.append((rest, run))
        heads = above
        keys = concatenate([rows.keys for rows in below])
        order, _ = in_order(keys)
        yield PackedRows(keys.take(order), concatenate([rows.values for rows in below]).take(order))
    for rows, run in heads:
        yield rows
        yield from run


def part_run(rows: PackedRows, run: Iterator[PackedRows], cut: bytes) -> tuple[PackedRows, PackedRows | None]:
    """Return the rows up to the key ``cut``, and the next portion of the run, which begins with ``rows``."""
    count = bisect_right(rows.keys, cut)
    return rows.take(slice(count)), rows.take(slice(count, None)) if count < len(rows) else next_portion(run)


def next_portion(run: Iterator[PackedRows]) -> PackedRows | None:
    """Return the next portion that has rows, None if there is none."""
    return next((rows for rows in run if len(rows)), None)


def in_order(keys: Packed) -> tuple[Integers, Bools]:
    """Return the positions of the keys in key order, and which of these keys equal the one before.

    Equal keys keep their order.
    """
    widest = int(keys.size.max(initial=0))
    if widest > WIDEST:
        return _in_order_one_by_one(keys)
    found = keys.first_words
    if widest <= WIDE and _has_ties(found):
        return _in_order_as_wholes(keys)
    order = np.argsort(found, kind="stable")
    found = found[order]
    if widest <= WIDE and _has_ties(found):
        return _in_order_as_wholes(keys)
    is_same = np.zeros(len(keys), np.bool_)
    is_same[1:] = found[1:] == found[:-1]
    last = -(-widest // WORD)
    for number in range(1, last + 1):  # if all words are equal, the shorter key comes first
        if not is_same.any():
            break
        tied = is_same.copy()
        tied[:-1] |= is_same[1:]
        places = np.flatnonzero(tied)
        some = keys.take(order[places])
        found = some.words(number) if number < last else some.size.astype(np.uint64)
        again = np.lexsort((found, np.cumsum(~is_same[places])))
        order[places] = order[places][again]
        found = found[again]
        is_same[places[1:]] &= found[1:] == found[:-1]
    return order, is_same


def _has_ties(words: Words) -> bool:
    return int((words[1:] == words[:-1]).sum()) * FEW_TIES > len(words)


def _in_order_as_wholes(keys: Packed) -> tuple[Integers, Bools]:
    """Sort whole keys, because many begin alike. This is also fast for runs that are sorted already."""
    wholes = _wholes(keys)
    order = np.argsort(wholes, kind="stable")
    wholes = wholes[order]
    is_same = np.zeros(len(keys), np.bool_)
    is_same[1:] = wholes[1:] == wholes[:-1]
    return order, is_same


def _wholes(keys: Packed) -> npt.NDArray[np.bytes_]:
    """Return each key as one value that numpy compares: its bytes, zeros up to the common width, and its size."""
    widths = keys.widths()
    width = widths[-1] + 1
    rows = np.zeros((len(keys), width), np.uint8)
    rows[:, -1] = keys.size
    for size in widths:
        which = slice(None) if len(widths) == 1 else np.flatnonzero(keys.size == size)
        rows[which, :size] = keys.take(which).matrix(size)
    wholes: npt.NDArray[np.bytes_] = rows.reshape(-1).view(f"S{width}")
    return wholes


def find_positions(keys: Packed, some: Packed) -> Integers:
    """Return the position of each of ``some`` among ``keys``, which are distinct; -1 if it is not there."""
    count = len(keys)
    order, is_same = in_order(concatenate([keys, some]))
    groups, firsts = np.cumsum(~is_same), order[~is_same]
    found = firsts[groups - 1]  # the first of equal ones is one of ``keys``, if they have it
    places = np.empty(count + len(some), np.int64)
    places[order] = np.where(found < count, found, -1)
    return places[count:]


def _in_order_one_by_one(keys: Packed) -> tuple[Integers, Bools]:
    strings = keys.strings()
    order = sorted(range(len(strings)), key=strings.__getitem__)
    is_same = [False, *(strings[one] == strings[other] for one, other in pairwise(order))]
    return np.array(order), np.array(is_same)


def search_sorted(numbers: Words, sought: Words) -> tuple[Integers, Bools]:
    """Return the first position of each number among numbers that rise, and whether it is there."""
    at = np.minimum(np.searchsorted(numbers, sought), len(numbers) - 1)
    return at, numbers[at] == sought


def are_equal(keys: Packed, others: Packed) -> Bools:
    """Return which keys equal the other key at the same position."""
    is_same: Bools = keys.size == others.size
    last = -(-int(keys.size.max(initial=0)) // WORD)
    for number in range(min(last, WIDE // WORD)):
        is_same &= keys.words(number) == others.words(number)
    if last > WIDE // WORD:
        for place in np.flatnonzero(is_same & (keys.size > WIDE)).tolist():
            is_same[place] = keys[place] == others[place]
    return is_same
