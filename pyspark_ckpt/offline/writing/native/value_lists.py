"""Keys of Spark's that have several values: these are written one by one, and joined when all of a key are known.

::

    hashed state     state · hash · key · index:u64be     a value after its size, a u32be
    ordered state    state · key · index:u64be · hash     the same

A key never begins with another one, so all values of a key are neighbours, in the order of their index. The stored row
of a key has all of them, one after the other: see ``ValueCodec.scala``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pyspark_ckpt.state_store.arrays.order import are_equal
from pyspark_ckpt.state_store.arrays.packed import Packed, concatenate, side_by_side
from pyspark_ckpt.state_store.arrays.rows import PackedRows
from pyspark_ckpt.state_store.checkpoints.state_rows import Tally
from pyspark_ckpt.state_store.format.keys import HASH_BYTES

INDEX_BYTES = 8


def add_sizes(values: Packed) -> Packed:
    """Return each value after its size."""
    return values.behind_heads(values.size.astype(">u4").view(np.uint8).reshape(-1, 4))


class ValueLists:
    """Joins the values of the keys of one state."""

    def __init__(self, *, is_ordered: bool) -> None:
        """``is_ordered``: whether the keys are scanned in order, so that the hash comes last."""
        self._is_ordered = is_ordered
        self._values = Tally()

    @property
    def values(self) -> Tally:
        """The values that were joined so far, as they were before."""
        return self._values

    def join(self, portions: Iterator[PackedRows]) -> Iterator[PackedRows]:
        """Yield the rows of keys in their order. ``portions``: all values of the state in order."""
        waiting: list[Packed] = []  # values of the last key so far, which may go on
        last = b""
        for portion in portions:
            if not len(portion):
                continue
            self._values.count(portion)
            keys, values = self._strip_index(portion.keys), portion.values.dense()
            begins = np.ones(len(keys), np.bool_)
            begins[1:] = ~are_equal(keys.take(slice(1, None)), keys.take(slice(len(keys) - 1)))
            if waiting and keys[0] != last:
                yield _make_row(last, waiting)
                waiting = []
            firsts = np.flatnonzero(begins)
            ends = np.append(firsts[1:], len(keys))
            if waiting or len(firsts) == 1:  # the first key of the portion is also the last one, or goes on
                waiting.append(values.take(slice(0, int(ends[0]))))
                if len(firsts) == 1:
                    last = keys[0]
                    continue
                yield _make_row(keys[0], waiting)
                waiting, firsts, ends = [], firsts[1:], ends[1:]
            sizes = values.at[ends[:-1]] - values.at[firsts[:-1]]
            if len(sizes):
                yield PackedRows(keys.take(firsts[:-1]), Packed(values.data, values.at[firsts[:-1]], sizes))
            last, waiting = keys[int(firsts[-1])], [values.take(slice(int(firsts[-1]), None))]
        if waiting:
            yield _make_row(last, waiting)

    def _strip_index(self, keys: Packed) -> Packed:
        if not self._is_ordered:
            return keys.before(INDEX_BYTES)
        hashes = Packed(keys.data, keys.at + keys.size - HASH_BYTES, np.full(len(keys), HASH_BYTES))
        return side_by_side(keys.before(INDEX_BYTES + HASH_BYTES), hashes)


def _make_row(key: bytes, values: list[Packed]) -> PackedRows:
    whole = concatenate(values)
    return PackedRows(Packed.of([key]), Packed(whole.data, np.zeros(1, np.int64), np.array([len(whole.data)])))
