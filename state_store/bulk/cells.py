"""Byte strings some of which are absent, as the values of keys are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pyspark_ckpt.state_store.bulk.order import Bools
from pyspark_ckpt.state_store.bulk.packed import Packed


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

    def __len__(self) -> int:
        """How many there are, absent ones as well."""
        return len(self.there)

    def strings(self) -> list[bytes | None]:
        """Each as an object of its own."""
        if self.there.all():
            return [*self.values.strings()]
        strings: list[bytes | None] = [None] * len(self)
        places = np.flatnonzero(self.there)
        for place, string in zip(places.tolist(), self.values.taken(places).strings(), strict=True):
            strings[place] = string
        return strings
