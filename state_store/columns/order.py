"""Many keys in their order, and rows of several runs in one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pyspark_ckpt.state_store.columns.packed import WIDEST, WORD, Integers, Packed, Words, concatenate
from pyspark_ckpt.state_store.columns.rows import RowColumns

WIDE = 64
"""Wider keys are not padded to one width."""
FEW_TIES = 16
"""One key in so many may begin as another: if more do, all are compared as wholes."""

Bools = npt.NDArray[np.bool_]


def join_runs(runs: Sequence[Iterator[RowColumns]]) -> Iterator[RowColumns]:
    """The rows of runs whose keys rise, none of which is in two, in the order of all keys.

    Of each run there is one portion in memory. Portions that are empty are allowed.
    """
    heads = [(rows, run) for run in runs if (rows := _next(run)) is not None]
    while len(heads) > 1:
        cut = min(rows.keys[len(rows) - 1] for rows, _ in heads)
        below, above = [], []
        for rows, run in heads:
            count = bisect_right(rows.keys, cut)
            below.append(rows.take(slice(count)))
            rest = rows.take(slice(count, None)) if count < len(rows) else _next(run)
            if rest is not None:
                above.append((rest, run))
        heads = above
        keys = concatenate([rows.keys for rows in below])
        order, _ = in_order(keys)
        yield RowColumns(keys.take(order), concatenate([rows.values for rows in below]).take(order))
    for rows, run in heads:
        yield rows
        yield from run


def _next(run: Iterator[RowColumns]) -> RowColumns | None:
    """The next portion that has rows."""
    return next((rows for rows in run if len(rows)), None)


def in_order(keys: Packed) -> tuple[Integers, Bools]:
    """Positions of the keys in their order, equal ones as they come; and which of these equal the one before."""
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
    for number in range(1, last + 1):  # behind all of its words, a key that is shorter comes first
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


def out_of_order(keys: Packed) -> int | None:
    """The position of a key that is not greater than the one before it; None if there is none."""
    words = keys.first_words
    if (words[1:] > words[:-1]).all():
        return None
    if int(keys.size.max()) <= WIDE:
        wholes = _wholes(keys)
        rises = wholes[1:] > wholes[:-1]
        return None if rises.all() else int(rises.argmin()) + 1
    order, is_same = in_order(keys)
    is_right = (order == np.arange(len(keys))) & ~is_same
    return None if is_right.all() else int(is_right.argmin())


def _has_ties(words: Words) -> bool:
    return int((words[1:] == words[:-1]).sum()) * FEW_TIES > len(words)


def _in_order_as_wholes(keys: Packed) -> tuple[Integers, Bools]:
    """As many begin alike: it is also quick for runs that have an order."""
    wholes = _wholes(keys)
    order = np.argsort(wholes, kind="stable")
    wholes = wholes[order]
    is_same = np.zeros(len(keys), np.bool_)
    is_same[1:] = wholes[1:] == wholes[:-1]
    return order, is_same


def _wholes(keys: Packed) -> npt.NDArray[np.bytes_]:
    """The bytes of each, with zeros behind them, and its size: numpy compares all of that."""
    widths = keys.widths()
    width = widths[-1] + 1
    rows = np.zeros((len(keys), width), np.uint8)
    rows[:, -1] = keys.size
    for size in widths:
        which = slice(None) if len(widths) == 1 else np.flatnonzero(keys.size == size)
        rows[which, :size] = keys.take(which).matrix(size)
    wholes: npt.NDArray[np.bytes_] = rows.reshape(-1).view(f"S{width}")
    return wholes


def places_in(keys: Packed, some: Packed) -> Integers:
    """For each of ``some`` its place among ``keys``, no two of which are equal; -1 if it is not there."""
    count = len(keys)
    order, is_same = in_order(concatenate([keys, some]))
    groups, firsts = np.cumsum(~is_same), order[~is_same]
    found = firsts[groups - 1]  # the first of equal ones is of the keys, if one is
    places = np.empty(count + len(some), np.int64)
    places[order] = np.where(found < count, found, -1)
    return places[count:]


def _in_order_one_by_one(keys: Packed) -> tuple[Integers, Bools]:
    strings = keys.strings()
    order = sorted(range(len(strings)), key=strings.__getitem__)
    is_same = [False, *(strings[one] == strings[other] for one, other in pairwise(order))]
    return np.array(order), np.array(is_same)


def place_of(numbers: Words, sought: Words) -> tuple[Integers, Bools]:
    """The first place of each among numbers that rise, and whether it is there."""
    at = np.minimum(np.searchsorted(numbers, sought), len(numbers) - 1)
    return at, numbers[at] == sought


def are_equal(keys: Packed, others: Packed) -> Bools:
    """Which keys equal the other one at their place."""
    is_same: Bools = keys.size == others.size
    for number in range(-(-int(keys.size.max(initial=0)) // WORD)):
        is_same &= keys.words(number) == others.words(number)
    return is_same
