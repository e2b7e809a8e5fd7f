"""The distinct keys of a partition's rows, in stored order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pyspark_ckpt.operators.encoding.key_codec import KeyCodec, normalise
from pyspark_ckpt.operators.encoding.suffixes import Suffixes, behind_hashes
from pyspark_ckpt.operators.types.columns import is_fixed_width, python_values
from pyspark_ckpt.operators.types.struct_values import struct_maker
from pyspark_ckpt.state_store.arrays.order import in_order

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Keys:
    """Distinct keys of one partition, sorted as they are stored: by hash, then by value. ``len`` counts them."""

    def __init__(self, columns: pa.Table, suffixes: Suffixes) -> None:
        """Keep the key columns, and the suffix (hash and bytes) of every key."""
        self._columns = columns
        self.suffixes = suffixes

    def __repr__(self) -> str:
        return f"Keys({len(self):,} of {', '.join(self.names)})"

    def __len__(self) -> int:
        """Return how many keys there are."""
        return len(self.suffixes)

    @property
    def names(self) -> list[str]:
        """The names of the key columns."""
        names: list[str] = self._columns.column_names
        return names

    def at(self, positions: Sequence[int]) -> Keys:
        """Return the keys at ``positions``, which must ascend strictly and exist. Raises InvalidInputError."""
        places = np.asarray(positions) if len(positions) else np.zeros(0, np.int64)
        suffixes = self.suffixes.at(places)
        return Keys(self._columns.take(pa.array(places)), suffixes)

    def column(self, name: str) -> pa.ChunkedArray:
        """Return the key column ``name``, with one value for each key. Raises KeyError."""
        return self._columns.column(name)

    def to_table(self) -> pa.Table:
        """Return all key columns, with one row for each key."""
        return self._columns

    def to_python(self, begin: int, end: int) -> list[Any]:
        """Return the keys at positions from ``begin`` up to ``end``, exclusive, as named tuples."""
        make = struct_maker(pa.struct(list(self._columns.schema)))
        columns = self._columns.slice(begin, end - begin).columns
        return list(map(make, zip(*(python_values(each.combine_chunks()) for each in columns), strict=True)))


def group_by_key(
    rows: pa.Table, by: Sequence[str], codec: KeyCodec, hashes: NDArray[np.int32]
) -> tuple[Keys, NDArray[np.int64]]:
    """Return the distinct keys of ``rows``, and for every row the position of its key."""
    columns = [normalise(rows.column(name).combine_chunks()) for name in by]
    codes, first = _distinct(columns, codec)
    picked = pa.array(first)
    distinct = [column.take(picked) for column in columns]
    suffixes = behind_hashes(hashes[first].astype(np.uint32), codec.encode_packed(distinct))
    order, _ = in_order(suffixes)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    table = pa.Table.from_arrays(distinct, names=list(by)).take(pa.array(order))
    return Keys(table, Suffixes(suffixes.take(order))), rank[codes]


def _distinct(columns: Sequence[pa.Array], codec: KeyCodec) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for every row the number of its key, and for every key the position of its first row."""
    plain = all(is_fixed_width(each.type) or pa.types.is_string(each.type) for each in columns)
    if not plain:
        columns = [pa.array(codec.encode_columns(columns), pa.binary())]
    codes = np.zeros(len(columns[0]), np.int64)
    count = 1
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
        count = len(encoded.dictionary)
        if len(columns) > 1:
            distinct, codes = np.unique(codes, return_inverse=True)
            count = len(distinct)
    first = np.empty(count, np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return codes, first
