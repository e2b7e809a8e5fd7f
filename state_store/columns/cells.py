"""Byte strings some of which are absent, as the values of keys are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyspark_ckpt.state_store.columns.order import Bools, places_in
from pyspark_ckpt.state_store.columns.packed import Integers, Packed, concatenate


@dataclass(frozen=True, eq=False)
class Cells:
    """``values``, and which of them are ``there``: the others are empty."""

    values: Packed
    there: Bools

    @classmethod
    def of(cls, strings: Sequence[bytes | None]) -> Cells:
        """The same as ``strings``."""
        there = np.fromiter((string is not None for string in strings), np.bool_, len(strings))
        return cls(Packed.of([string or b"" for string in strings]), there)

    @classmethod
    def present(cls, values: Packed) -> Cells:
        """All of them there."""
        return cls(values, np.ones(len(values), np.bool_))

    @classmethod
    def absent(cls, count: int) -> Cells:
        """So many of which none is there."""
        nowhere = np.zeros(count, np.int64)
        return cls(Packed(np.zeros(0, np.uint8), nowhere, nowhere), np.zeros(count, np.bool_))

    def __len__(self) -> int:
        """How many there are, absent ones as well."""
        return len(self.there)

    def take(self, which: slice | npt.NDArray[np.generic]) -> Cells:
        """Those at some positions, or where a mask is true."""
        return Cells(self.values.take(which), self.there[which])

    def among(self, count: int, places: Bools | Integers) -> Cells:
        """So many, these at some places or where a mask is true, and what is absent elsewhere."""
        at, size = np.zeros(count, np.int64), np.zeros(count, np.int64)
        there = np.zeros(count, np.bool_)
        at[places], size[places], there[places] = self.values.at, self.values.size, self.there
        return Cells(Packed(self.values.data, at, size), there)

    def strings(self) -> list[bytes | None]:
        """Each as an object of its own."""
        if self.there.all():
            return [*self.values.strings()]
        strings: list[bytes | None] = [None] * len(self)
        places = np.flatnonzero(self.there)
        for place, string in zip(places.tolist(), self.values.take(places).strings(), strict=True):
            strings[place] = string
        return strings


def join_cells(parts: Sequence[Cells]) -> Cells:
    """All of them, part after part."""
    there = np.concatenate([np.zeros(0, np.bool_), *(part.there for part in parts)])
    return Cells(concatenate([part.values for part in parts]), there)


def overlaid(keys: Packed, cells: Cells, changed: Packed, changes: Cells) -> Cells:
    """The ``cells`` of some ``keys``, but for those of ``changed`` keys, no two of which are equal."""
    places = places_in(changed, keys)
    is_changed = places >= 0
    if not is_changed.any():
        return cells
    at = np.where(is_changed, len(keys) + places, np.arange(len(keys)))
    return join_cells([cells, changes]).take(at)
