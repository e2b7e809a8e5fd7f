"""Rows that a batch writes or deletes, many at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyspark_ckpt.state_store.arrays.cells import Cells, join_cells
from pyspark_ckpt.state_store.arrays.order import in_order
from pyspark_ckpt.state_store.arrays.packed import Integers, Packed, concatenate


@dataclass(frozen=True, eq=False)
class Writes:
    """Keys, and their new values. An absent value deletes the row."""

    keys: Packed
    cells: Cells

    @classmethod
    def of(cls, rows: Iterable[tuple[bytes, bytes | None]]) -> Writes:
        """Pack ``rows``."""
        taken = list(rows)
        return cls(Packed.of([key for key, _ in taken]), Cells.of([value for _, value in taken]))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.keys)

    def take(self, which: slice | npt.NDArray[np.generic]) -> Writes:
        """Return the rows at some positions, or where a mask is true."""
        return Writes(self.keys.take(which), self.cells.take(which))

    def prefix(self, head: bytes) -> Writes:
        """Return the rows with ``head`` before each key."""
        return Writes(self.keys.prefix(head), self.cells)

    def rows(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Return the rows one by one, with None for deleted ones."""
        return zip(self.keys.strings(), self.cells.strings(), strict=True)

    def apart(self, end: bytes | None) -> tuple[Writes, Writes]:
        """Split rows whose keys rise: those below ``end`` (None: all rows), and the others."""
        cut = len(self) if end is None else bisect_left(self.keys, end)
        return self.take(slice(cut)), self.take(slice(cut, None))


def newest(parts: Sequence[Writes]) -> Writes:
    """Return the last write of each key in all parts, in key order. Later parts are newer."""
    keys = concatenate([part.keys for part in parts])
    last = last_of_each(keys)
    return Writes(keys.take(last), join_cells([part.cells for part in parts]).take(last))


def last_of_each(keys: Packed) -> Integers:
    """Return the positions of the distinct keys in key order: of equal keys, the position of the last."""
    order, is_same = in_order(keys)
    is_last = np.ones(len(keys), np.bool_)
    is_last[:-1] = ~is_same[1:]
    return order[is_last]
