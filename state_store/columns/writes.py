"""Rows that a batch writes or deletes, many at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyspark_ckpt.state_store.columns.cells import Cells, join_cells
from pyspark_ckpt.state_store.columns.order import in_order
from pyspark_ckpt.state_store.columns.packed import Integers, Packed, concatenate


@dataclass(frozen=True, eq=False)
class Writes:
    """Keys, and what is to be under them: a row that is absent is deleted."""

    keys: Packed
    cells: Cells

    @classmethod
    def of(cls, rows: Iterable[tuple[bytes, bytes | None]]) -> Writes:
        """The same as ``rows``."""
        taken = list(rows)
        return cls(Packed.of([key for key, _ in taken]), Cells.of([value for _, value in taken]))

    def __len__(self) -> int:
        """How many there are."""
        return len(self.keys)

    def take(self, which: slice | npt.NDArray[np.generic]) -> Writes:
        """Those at some positions, or where a mask is true."""
        return Writes(self.keys.take(which), self.cells.take(which))

    def prefix(self, head: bytes) -> Writes:
        """The same with ``head`` before each key."""
        return Writes(self.keys.prefix(head), self.cells)

    def rows(self) -> Iterator[tuple[bytes, bytes | None]]:
        """One by one."""
        return zip(self.keys.strings(), self.cells.strings(), strict=True)

    def apart(self, end: bytes | None) -> tuple[Writes, Writes]:
        """Of rows whose keys rise: those below ``end`` (None: all of them), and the others."""
        cut = len(self) if end is None else bisect_left(self.keys, end)
        return self.take(slice(cut)), self.take(slice(cut, None))


def newest(parts: Sequence[Writes]) -> Writes:
    """What is left of all parts, one after the other, in the order of keys: of one key, what came last."""
    keys = concatenate([part.keys for part in parts])
    last = last_of_each(keys)
    return Writes(keys.take(last), join_cells([part.cells for part in parts]).take(last))


def last_of_each(keys: Packed) -> Integers:
    """Positions of keys in their order: of equal ones, that of the last."""
    order, is_same = in_order(keys)
    is_last = np.ones(len(keys), np.bool_)
    is_last[:-1] = ~is_same[1:]
    return order[is_last]
