"""Encodes rows as the entries of data blocks: the reverse of ``blocks``.

No key shares bytes with the previous one: compression removes what they have in common. Rows with the same key size and
the same value size are encoded all at once, which is fast only if there are few sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyspark_ckpt.state_store.columns.order import Bools
from pyspark_ckpt.state_store.columns.packed import Bytes, Integers, are_same, chain_arrays, repeat
from pyspark_ckpt.state_store.columns.rows import RowColumns
from pyspark_ckpt.state_store.sst.blocks import DELETION, VALUE
from pyspark_ckpt.state_store.sst.layout import MORE, SUFFIX_BYTES, encode_number

_SUFFIX = VALUE.to_bytes(SUFFIX_BYTES, "little")


@dataclass(frozen=True, eq=False)
class Encoded:
    """Consecutive entries: their bytes, and for each its size and the position and size of its key within it."""

    data: Bytes
    sizes: Integers
    key_at: Integers
    key_sizes: Integers

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.sizes)

    @property
    def are_alike(self) -> bool:
        """Return whether all entries have one size and their keys have one size; true if there are none."""
        return all(map(are_same, (self.sizes, self.key_at, self.key_sizes)))

    def behind(self, count: int, size_bytes: int) -> Encoded:
        """Return the entries after the first ``count``, which have ``size_bytes`` bytes."""
        data = self.data[size_bytes:].copy()
        return Encoded(data, self.sizes[count:], self.key_at[count:], self.key_sizes[count:])


def join_entries(parts: list[Encoded]) -> Encoded:
    """Return the entries of all parts in one."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*((part.sizes, part.key_at, part.key_sizes) for part in parts), strict=True)
    return Encoded(np.concatenate([part.data for part in parts]), *map(chain_arrays, columns))


def encode(rows: RowColumns, there: Bools) -> Encoded:
    """Return the entries of rows whose keys and values have at most ``WIDEST`` bytes. Absent rows delete their keys."""
    entries = _of_values(rows)
    if not there.all():
        kind_at = np.cumsum(entries.sizes) - entries.sizes + entries.key_at + entries.key_sizes
        entries.data[kind_at] = np.where(there, VALUE, DELETION)
    return entries


def _of_values(rows: RowColumns) -> Encoded:
    parts = [(positions, _of_one_size(some)) for positions, some in rows.by_size()]
    if len(parts) == 1:
        ((_, entries),) = parts
        said = entries.shape[1], int(_key_at(rows.take(slice(1)))[0]), int(rows.keys.size[0])
        return Encoded(entries.reshape(-1), *(repeat(each, len(rows)) for each in said))
    key_at = _key_at(rows)
    sizes = key_at + rows.keys.size + SUFFIX_BYTES + rows.values.size
    ends = np.cumsum(sizes)
    data = np.empty(int(ends[-1]), np.uint8)
    for positions, entries in parts:
        width = entries.shape[1]
        places = np.ndarray((len(data) - width + 1,), f"V{width}", data, 0, (1,))
        places[(ends - sizes)[positions]] = entries.view(f"V{width}").reshape(-1)
    return Encoded(data, sizes, key_at, rows.keys.size)


def _key_at(rows: RowColumns) -> Integers:
    """Return where keys begin in their entries: after three numbers."""
    return 3 + (rows.keys.size + SUFFIX_BYTES >= MORE) + (rows.values.size >= MORE)


def _of_one_size(rows: RowColumns) -> Bytes:
    """Return the entries as rows of a matrix."""
    key_bytes, value_bytes = int(rows.keys.size[0]), int(rows.values.size[0])
    header = b"\0" + encode_number(key_bytes + SUFFIX_BYTES) + encode_number(value_bytes)
    blank = header + bytes(key_bytes) + _SUFFIX + bytes(value_bytes)
    entries = np.empty(len(rows), f"V{len(blank)}")
    entries[:] = np.void(blank)
    for strings, at in ((rows.keys, len(header)), (rows.values, len(blank) - value_bytes)):
        width = int(strings.size[0])
        if width:
            field = np.dtype({"names": ["it"], "formats": [f"V{width}"], "offsets": [at], "itemsize": len(blank)})
            entries.view(field)["it"] = strings.matrix(width).reshape(-1).view(f"V{width}")
    return entries.view(np.uint8).reshape(len(rows), len(blank))
