"""Rows as the entries of data blocks, one behind the other: the other way round than ``blocks``.

No key shares bytes with the one before it; compression takes out what they have in common. Rows with keys of one size
and values of one size are handled all at once, so there should be few sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pyspark_ckpt.state_store.bulk.blocks import SUFFIX_BYTES, VALUE
from pyspark_ckpt.state_store.bulk.packed import WIDEST, Bytes, Integers
from pyspark_ckpt.state_store.bulk.rows import RowColumns

_SUFFIX = np.frombuffer(VALUE.to_bytes(SUFFIX_BYTES, "little"), np.uint8)
_MORE = 0x80


@dataclass(frozen=True, eq=False)
class Encoded:
    """Entries one behind the other: their bytes and, of each, its size, and where its key is within it."""

    data: Bytes
    sizes: Integers
    key_at: Integers
    key_sizes: Integers

    def __len__(self) -> int:
        """How many there are."""
        return len(self.sizes)

    def behind(self, count: int, size_bytes: int) -> Encoded:
        """Those that come after the first ``count``, which have so many bytes."""
        data = self.data[size_bytes:].copy()
        return Encoded(data, self.sizes[count:], self.key_at[count:], self.key_sizes[count:])


def joined_entries(parts: list[Encoded]) -> Encoded:
    """All of them."""
    if len(parts) == 1:
        return parts[0]
    columns = [(part.data, part.sizes, part.key_at, part.key_sizes) for part in parts]
    return Encoded(*(np.concatenate(some) for some in zip(*columns, strict=True)))


def of_one_size(rows: RowColumns) -> Iterator[tuple[slice | Integers, RowColumns]]:
    """The rows by the sizes of their keys and values, with the positions that they have among all."""
    lengths = rows.keys.size * (WIDEST + 1) + rows.values.size
    if lengths.min() == lengths.max():
        yield slice(None), rows
        return
    order = np.argsort(lengths, kind="stable")
    cuts = np.flatnonzero(np.diff(lengths[order])) + 1
    for some in np.split(order, cuts):
        yield some, rows.taken(some)


def encoded(rows: RowColumns) -> Encoded:
    """The entries of rows whose keys and values have ``WIDEST`` bytes at most."""
    count = len(rows)
    own, size = rows.keys.size + SUFFIX_BYTES, rows.values.size
    key_at = 3 + (own >= _MORE) + (size >= _MORE)
    sizes = key_at + own + size
    ends = np.cumsum(sizes)
    data = np.empty(int(ends[-1]), np.uint8)
    for positions, some in of_one_size(rows):
        entries = _of_one_size(some)
        if len(some) == count:
            data = entries.reshape(-1)
        else:
            width = entries.shape[1]
            places = np.ndarray((len(data) - width + 1,), f"V{width}", data, 0, (1,))
            places[(ends - sizes)[positions]] = entries.view(f"V{width}").reshape(-1)
    return Encoded(data, sizes, key_at, rows.keys.size)


def _of_one_size(rows: RowColumns) -> Bytes:
    """The entries as rows of a matrix."""
    key_bytes, value_bytes = int(rows.keys.size[0]), int(rows.values.size[0])
    header = b"\0" + varint(key_bytes + SUFFIX_BYTES) + varint(value_bytes)
    key_ends = len(header) + key_bytes
    entries = np.empty((len(rows), key_ends + SUFFIX_BYTES + value_bytes), np.uint8)
    entries[:, : len(header)] = np.frombuffer(header, np.uint8)
    entries[:, len(header) : key_ends] = rows.keys.matrix(key_bytes)
    entries[:, key_ends : key_ends + SUFFIX_BYTES] = _SUFFIX
    entries[:, key_ends + SUFFIX_BYTES :] = rows.values.matrix(value_bytes)
    return entries


def varint(number: int) -> bytes:
    """A number, seven bits a byte."""
    digits = bytearray()
    while number >= _MORE:
        digits.append(number & 0x7F | _MORE)
        number >>= 7
    digits.append(number)
    return bytes(digits)
