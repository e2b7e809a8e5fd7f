"""Vectorised processors: all rows of a partition at once, state for all their keys at once, no Python loop over rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.layout import KeyLayout

if TYPE_CHECKING:
    from numpy.typing import NDArray


class VectorProcessor(ABC):
    """Declares states as class attributes, and turns a table of rows into a table of output rows."""

    @abstractmethod
    def process_batch(self, ctx: VectorContext, batch: pa.Table) -> pa.Table:
        """Process rows of one partition. ``ctx.keys`` are their distinct keys, ``ctx.key_index`` says whose row is whose."""


class Keys:
    """Distinct keys, sorted as they are stored."""

    def __init__(self, columns: pa.Table, suffixes: list[bytes]) -> None:
        """Keep the key columns, and hash and bytes of every key."""
        self._columns = columns
        self._suffixes = suffixes
        self._stored: dict[int, list[bytes]] = {}

    def __len__(self) -> int:
        """How many keys."""
        return len(self._suffixes)

    def column(self, name: str) -> pa.ChunkedArray:
        """A key column of all keys."""
        return self._columns.column(name)

    def stored(self, state: int) -> list[bytes]:
        """Keys of the rows of a state."""
        if state not in self._stored:
            head = state.to_bytes(2, "big")
            self._stored[state] = [head + suffix for suffix in self._suffixes]
        return self._stored[state]


@dataclass(frozen=True)
class VectorContext:
    """What a processor is told about a batch. ``key_index``: for every row the position of its key in ``keys``."""

    keys: Keys
    key_index: NDArray[np.int64]


def group_keys(batch: pa.Table, layout: KeyLayout, hashes: NDArray[np.int64]) -> tuple[Keys, NDArray[np.int64]]:
    """The distinct keys of the rows, in stored order, and for every row the position of its key."""
    codes, first = _distinct([batch.column(name) for name in layout.names])
    columns = batch.select(list(layout.names)).take(pa.array(first))
    encoded = layout.encode(columns)
    heads = hashes[first].astype(">u4").tobytes()
    suffixes = [heads[at : at + 4] + key for at, key in zip(range(0, len(heads), 4), encoded, strict=True)]
    order = np.argsort(hashes[first], kind="stable")
    ordered = hashes[first][order]
    if np.any(ordered[1:] == ordered[:-1]):  # keys that share their hash: their own order counts
        order = np.array(sorted(range(len(suffixes)), key=suffixes.__getitem__), dtype=np.int64)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    keys = Keys(columns.take(pa.array(order)), [suffixes[position] for position in order])
    return keys, rank[codes]


def _distinct(columns: Sequence[pa.ChunkedArray]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For every row the number of its key, and for every key the position of one of its rows."""
    codes = np.zeros(len(columns[0]), np.int64)
    count = 1
    for column in columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
        count *= len(encoded.dictionary)
        if len(columns) > 1:
            distinct, codes = np.unique(codes, return_inverse=True)
            count = len(distinct)
    first = np.empty(count, np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return codes, first
