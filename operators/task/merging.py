"""Rows of several inputs in one order: runs of one input each, as a key gets them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.encoding.distinct_keys import Groups, Keys, group_by_key
from pyspark_ckpt.operators.encoding.key_codec import KeyCodec, argsort
from pyspark_ckpt.operators.task.event_times import greatest_so_far

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyspark_ckpt.operators.declarations.operator import Input


@dataclass(frozen=True)
class Merged:
    """Rows of several inputs, in the order of their keys and, within a key, of their ``order_by``; ties by input.

    ``inputs`` and ``places``: for each row in this order, the number of its input, and its position there. ``runs``:
    where a run begins, which is rows of one key and input without others between them. ``times_ms``: the event time of
    each row, if states live by it: see ``in_time``.
    """

    keys: Keys
    of_key: NDArray[np.int64]
    inputs: NDArray[np.int64]
    places: NDArray[np.int64]
    runs: NDArray[np.int64]
    times_ms: NDArray[np.int64] | None = None

    @classmethod
    def of_one(cls, groups: Groups) -> Merged:
        """Return the rows of one input, in their order within a key."""
        of_key = groups.places[groups.order]
        runs = np.flatnonzero(np.diff(of_key, prepend=-1))
        return cls(groups.keys, of_key, np.zeros(len(of_key), np.int64), groups.order, runs)

    @classmethod
    def of(
        cls,
        given: Sequence[tuple[Input, pa.Table, NDArray[np.int32]]],
        by: Sequence[str],
        codec: KeyCodec,
    ) -> Merged:
        """Merge the rows of each input, which come with the hashes of their keys. ``by``: names for the keys."""
        tables = [(each, table) for each, table, _ in given]
        rows = pa.table({name: _join([t.column(each.by[n]) for each, t in tables]) for n, name in enumerate(by)})
        keys, index, _ = group_by_key(rows, by, codec, np.concatenate([hashes for *_, hashes in given]))
        sizes = [len(table) for _, table, _ in given]
        inputs = np.repeat(np.arange(len(given)), sizes)
        places = np.concatenate([np.arange(size) for size in sizes])
        width = len(given[0][0].order_by)
        ordered = [_join([t.column(each.order_by[n]) for each, t in tables]) for n in range(width)]
        order = argsort([column.combine_chunks() for column in ordered])
        order = order[np.argsort(index[order], kind="stable")]
        index, inputs, places = index[order], inputs[order], places[order]
        is_first = np.ones(len(index), np.bool_)
        is_first[1:] = (index[1:] != index[:-1]) | (inputs[1:] != inputs[:-1])
        return cls(keys, index, inputs, places, np.flatnonzero(is_first))

    def in_time(self, times_ms: Sequence[NDArray[np.int64]], life_ms: int) -> Merged:
        """Return the same rows with their event times, which never fall within a key.

        ``times_ms``: those of each input. Another run begins after each pause of ``life_ms``.
        """
        times = np.empty(len(self.of_key), np.int64)
        for number, each in enumerate(times_ms):
            chosen = self.inputs == number
            times[chosen] = each[self.places[chosen]]
        times = greatest_so_far(times, self.of_key)
        begins = np.zeros(len(times), np.bool_)
        begins[self.runs] = True
        begins[1:] |= (self.of_key[1:] == self.of_key[:-1]) & (times[1:] - times[:-1] >= life_ms)
        return replace(self, runs=np.flatnonzero(begins), times_ms=times)

    def rounds(self) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield an input, positions of its rows, and those of their keys: see ``choose``."""
        for number, chosen in self.choose():
            yield number, self.places[chosen], self.of_key[chosen]

    def choose(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield an input, and positions of rows in the order of all: first the first run of every key, and so on.

        Within a round, the inputs are in their order, and each key has rows of one of them.
        """
        number = np.arange(len(self.runs))
        key = self.of_key[self.runs]
        first = np.ones(len(key), np.bool_)
        first[1:] = key[1:] != key[:-1]
        rank = number - number[first][np.cumsum(first) - 1]
        lengths = np.diff(self.runs, append=len(self.of_key))
        round_of = np.repeat(rank, lengths)
        order = np.lexsort((np.arange(len(round_of)), self.inputs, round_of))
        turn = round_of[order] * (int(self.inputs.max(initial=0)) + 1) + self.inputs[order]
        begins = np.flatnonzero(np.diff(turn, prepend=-1))
        for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
            chosen = order[begin:end]
            yield int(self.inputs[chosen[0]]), chosen


def _join(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Return columns of one Spark type, of which some may have NOT NULL parts, after one another."""
    kind = _nullable(columns[0].type)
    return pa.chunked_array([chunk for column in columns for chunk in column.cast(kind).chunks], kind)


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Return the type with null allowed in all of its parts."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _nullable(kind.value_type)))
    return kind
