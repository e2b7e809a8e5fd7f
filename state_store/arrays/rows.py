"""Rows of a store, many at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyspark_ckpt.state_store.arrays.packed import Integers, Packed, are_same, concatenate
from pyspark_ckpt.state_store.format.keys import HASH_BYTES, ORDERED_BIT, STATE_BYTES, state_head


@dataclass(frozen=True, eq=False)
class PackedRows:
    """Keys that rise, and their values."""

    keys: Packed
    values: Packed

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.keys)

    @classmethod
    def of(cls, rows: Sequence[tuple[bytes, bytes]]) -> PackedRows:
        """Pack ``rows``."""
        return cls(Packed.of([key for key, _ in rows]), Packed.of([value for _, value in rows]))

    @classmethod
    def join(cls, parts: Sequence[PackedRows]) -> PackedRows:
        """Return the rows of all parts, part after part."""
        if len(parts) == 1:
            return parts[0]
        return cls(concatenate([part.keys for part in parts]), concatenate([part.values for part in parts]))

    @classmethod
    def join_portions(cls, parts: Iterable[PackedRows], least_bytes: int) -> Iterator[PackedRows]:
        """Yield the rows of all parts, joined into portions of ``least_bytes`` or more; the last may have fewer."""
        waiting: list[PackedRows] = []
        size_bytes = 0
        for part in parts:
            waiting.append(part)
            size_bytes += int(part.keys.size.sum()) + int(part.values.size.sum())
            if size_bytes >= least_bytes:
                yield cls.join(waiting)
                waiting, size_bytes = [], 0
        if waiting:
            yield cls.join(waiting)

    def take(self, which: slice | npt.NDArray[np.generic]) -> PackedRows:
        """Return the rows at some positions, or where a mask is true."""
        return PackedRows(self.keys.take(which), self.values.take(which))

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Return the rows one by one."""
        return zip(self.keys.strings(), self.values.strings(), strict=True)

    @property
    def are_of_one_size(self) -> bool:
        """Whether all keys have one size and all values have one size. There must be a row."""
        return are_same(self.keys.size) and are_same(self.values.size)

    @property
    def sizes(self) -> Integers:
        """For each row, one number that stands for its key size and value size. There must be a row."""
        return self.keys.size * (int(self.values.size.max()) + 1) + self.values.size

    def by_size(self) -> Iterator[tuple[slice | Integers, PackedRows]]:
        """Yield parts of the rows with one key size and one value size, each with its positions among all rows."""
        if not len(self):
            return
        if self.are_of_one_size:
            yield slice(None), self
            return
        sizes = self.sizes
        order = np.argsort(sizes, kind="stable")
        for some in np.split(order, np.flatnonzero(np.diff(sizes[order])) + 1):
            yield some, self.take(some)

    @property
    def is_ordered(self) -> bool:
        """Whether the rows, all of one state, are scanned in key order: then the hashes are at the end of the keys."""
        return len(self) > 0 and bool(self.keys.data[self.keys.at[0]] & ORDERED_BIT >> 8)

    def hashes(self) -> npt.NDArray[np.uint32]:
        """Return the hashes in the keys. All rows must be of one state."""
        keys = self.keys
        at = keys.at + keys.size - HASH_BYTES if self.is_ordered else keys.at + STATE_BYTES
        numbers = np.ndarray((max(0, len(keys.data) - HASH_BYTES + 1),), ">u4", keys.data, 0, (1,))
        return numbers[at].astype(np.uint32)

    def with_hashes(self, begin: int, end: int) -> PackedRows:
        """Return the rows whose unsigned hashes are from ``begin`` up to ``end``. All must be of one state."""
        hashes = self.hashes().astype(np.int64)
        return self.take((begin <= hashes) & (hashes < end))

    def renumber(self, number: int) -> PackedRows:
        """Return the rows with the state ``number`` in their keys. All must be of one state."""
        head, width = state_head(number), self.keys.widths()
        if not len(self) or self.keys[0][:STATE_BYTES] == head:
            return self
        if len(width) != 1:
            return PackedRows(Packed.of([head + key[STATE_BYTES:] for key in self.keys.strings()]), self.values)
        keys = self.keys.matrix(width[0])
        keys[:, :STATE_BYTES] = np.frombuffer(head, np.uint8)
        return PackedRows(Packed.of_matrix(keys), self.values)
