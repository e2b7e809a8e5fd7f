"""The distinct keys of a partition's rows, in stored order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ckpt.operators.encoding.key_codec import KeyCodec, normalise
from pyspark_ckpt.operators.encoding.suffixes import Suffixes, behind_hashes
from pyspark_ckpt.operators.types.columns import is_fixed_width, python_values, to_numbers, validity
from pyspark_ckpt.operators.types.struct_values import struct_maker
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


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
        with _naming(self._columns.column_names):
            return list(map(make, zip(*(python_values(each.combine_chunks()) for each in columns), strict=True)))


@contextmanager
def _naming(by: Sequence[str]) -> Iterator[None]:
    """Name the key columns in the error of a value that cannot be a key."""
    try:
        yield
    except InvalidInputError as problem:
        raise InvalidInputError(f"Key {', '.join(by)}: {problem.message}", hint=problem.hint) from problem


class Groups(NamedTuple):
    """Rows by their keys.

    ``places``: the position of each row's key. ``order``: the rows in the order of their keys, those of a key as they
    came.
    """

    keys: Keys
    places: NDArray[np.int64]
    order: NDArray[np.int64]


def group_by_key(rows: pa.Table, by: Sequence[str], codec: KeyCodec, hashes: NDArray[np.int32]) -> Groups:
    """Return the distinct keys of ``rows``, whose hashes are given, and the rows by them. Raises InvalidInputError."""
    with _naming(by):
        return _group_by_key(rows, by, codec, hashes)


def _group_by_key(rows: pa.Table, by: Sequence[str], codec: KeyCodec, hashes: NDArray[np.int32]) -> Groups:
    columns = [normalise(rows.column(name).combine_chunks()) for name in by]
    unsigned = hashes.astype(np.uint32)
    order = _sort(unsigned)
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = ~_find_repeats(columns, codec, order)
    is_new_hash = np.diff(unsigned[order], prepend=unsigned[order[:1]] + np.uint32(1)) != 0
    if (is_first & ~is_new_hash).any():
        _part(order, is_first, np.cumsum(is_new_hash), lambda some: codec.encode_columns(_take(columns, some)))
    first = order[is_first]
    places = np.empty(len(order), np.int64)
    places[order] = np.cumsum(is_first) - 1
    distinct = _take(columns, first)
    suffixes = behind_hashes(unsigned[first], codec.encode_packed(distinct))
    return Groups(Keys(pa.Table.from_arrays(distinct, names=list(by)), Suffixes(suffixes)), places, order)


def _sort(hashes: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the positions of rows in the order of their hashes, those of equal ones as they came."""
    numbered = (hashes.astype(np.uint64) << _HALF) | np.arange(len(hashes), dtype=np.uint64)
    return (np.sort(numbered) & _LOW).astype(np.int64)


def _find_repeats(columns: Sequence[pa.Array], codec: KeyCodec, order: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether each row, in this order, has the key of the row before it; the first row is left out."""
    if not all(is_fixed_width(each.type) or pa.types.is_string(each.type) for each in columns):
        columns = [pa.array(codec.encode_columns(columns), pa.binary())]
    same = np.ones(max(len(order) - 1, 0), np.bool_)
    for column in columns:
        if is_fixed_width(column.type):
            numbers = to_numbers(column)
            values = numbers.view(f"i{numbers.dtype.itemsize}")[order]
            equal = values[1:] == values[:-1]
        else:
            texts = column.take(pa.array(order))
            equal = pc.equal(texts[1:], texts[:-1]).fill_null(False).to_numpy(zero_copy_only=False)
        if column.null_count:
            present = validity(column)[order]
            equal = np.where(present[1:], equal & present[:-1], ~present[:-1])
        same &= equal
    return same


def _part(
    order: NDArray[np.int64],
    is_first: NDArray[np.bool_],
    group: NDArray[np.int64],
    encode: Callable[[NDArray[np.int64]], list[bytes]],
) -> None:
    """Put the keys of one hash into their order, and mark the first row of each. ``group``: numbers of the hashes."""
    several = np.bincount(group, is_first) > 1
    places = np.flatnonzero(several[group])
    stored = list(zip(group[places].tolist(), encode(order[places]), strict=True))
    by_key = sorted(range(len(places)), key=stored.__getitem__)
    order[places] = order[places[by_key]]
    is_first[places] = [True, *(stored[a] != stored[b] for a, b in pairwise(by_key))]


def _take(columns: Sequence[pa.Array], places: NDArray[np.int64]) -> list[pa.Array]:
    return [column.take(pa.array(places)) for column in columns]
