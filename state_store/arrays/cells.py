"""Byte strings of which some may be absent, like the values of keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyspark_ckpt.state_store.arrays.order import Bools, find_positions
from pyspark_ckpt.state_store.arrays.packed import Integers, Packed, concatenate


@dataclass(frozen=True, eq=False)
class Cells:
    """``values``, and which of them are ``there``. Absent ones are empty in ``values``."""

    values: Packed
    there: Bools

    @classmethod
    def of(cls, strings: Sequence[bytes | None]) -> Cells:
        """Return the cells for ``strings``; None is absent."""
        there = np.fromiter((string is not None for string in strings), np.bool_, len(strings))
        return cls(Packed.of([string or b"" for string in strings]), there)

    @classmethod
    def present(cls, values: Packed) -> Cells:
        """Return cells without absent ones."""
        return cls(values, np.ones(len(values), np.bool_))

    @classmethod
    def absent(cls, count: int) -> Cells:
        """Return ``count`` absent cells."""
        nowhere = np.zeros(count, np.int64)
        return cls(Packed(np.zeros(0, np.uint8), nowhere, nowhere), np.zeros(count, np.bool_))

    def __len__(self) -> int:
        """Return the number of cells, absent ones included."""
        return len(self.there)

    def take(self, which: slice | npt.NDArray[np.generic]) -> Cells:
        """Return the cells at some positions, or where a mask is true."""
        return Cells(self.values.take(which), self.there[which])

    def among(self, count: int, places: Bools | Integers) -> Cells:
        """Return ``count`` cells: these at some positions or where a mask is true, absent ones elsewhere."""
        at, size = np.zeros(count, np.int64), np.zeros(count, np.int64)
        there = np.zeros(count, np.bool_)
        at[places], size[places], there[places] = self.values.at, self.values.size, self.there
        return Cells(Packed(self.values.data, at, size), there)

    def strings(self) -> list[bytes | None]:
        """Return each cell as a separate object, None for an absent one."""
        if self.there.all():
            return [*self.values.strings()]
        strings: list[bytes | None] = [None] * len(self)
        places = np.flatnonzero(self.there)
        for place, string in zip(places.tolist(), self.values.take(places).strings(), strict=True):
            strings[place] = string
        return strings


def join_cells(parts: Sequence[Cells]) -> Cells:
    """Return the cells of all parts, part after part."""
    there = np.concatenate([np.zeros(0, np.bool_), *(part.there for part in parts)])
    return Cells(concatenate([part.values for part in parts]), there)


def overlay(keys: Packed, cells: Cells, changed: Packed, changes: Cells) -> Cells:
    """Return the ``cells`` of ``keys`` with the ``changes`` of ``changed`` keys, which are distinct."""
    places = find_positions(changed, keys)
    is_changed = places >= 0
    if not is_changed.any():
        return cells
    at = np.where(is_changed, len(keys) + places, np.arange(len(keys)))
    return join_cells([cells, changes]).take(at)
