"""Hash and bytes of many keys, which is what their rows have behind the number of the state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from pyspark_ckpt.state_store.columns.order import in_order
from pyspark_ckpt.state_store.columns.packed import Packed
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.keys import HASH_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Suffixes(Sequence[bytes]):
    """Suffixes in stored order, as objects and as columns: each form is made of the other when it is asked for."""

    def __init__(self, suffixes: Sequence[bytes] | Packed) -> None:
        """Keep them in the form they have."""
        self._packed = suffixes if isinstance(suffixes, Packed) else None
        self._strings = None if isinstance(suffixes, Packed) else suffixes

    @property
    def packed(self) -> Packed:
        """As columns."""
        if self._packed is None:
            self._packed = Packed.of(self.strings)
        return self._packed

    @property
    def strings(self) -> Sequence[bytes]:
        """Each as an object of its own."""
        if self._strings is None:
            self._strings = self.packed.strings()
        return self._strings

    def at(self, positions: NDArray[Any]) -> Suffixes:
        """Some of them, whose positions rise: the same object if they are all. Raises InvalidInputError."""
        self._require(positions)
        if (positions[1:] <= positions[:-1]).any():
            raise InvalidInputError("Positions of keys do not rise, or one is there twice.", hint="Sort them.")
        return self if len(positions) == len(self) else Suffixes(self.packed.take(positions))

    def each(self, positions: NDArray[Any]) -> Packed:
        """Those at positions, which may come in any order and again. Raises InvalidInputError."""
        self._require(positions)
        return self.packed.take(positions if len(positions) else np.zeros(0, np.int64))

    def _require(self, positions: NDArray[Any]) -> None:
        """Raise InvalidInputError if one is no position."""
        if len(positions) and positions.dtype.kind not in "iu":
            raise InvalidInputError(f"Positions of keys are of type {positions.dtype}, not integers.")
        if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < len(self):
            wrong = int(positions.min() if positions.min() < 0 else positions.max())
            raise InvalidInputError(f"There is no key at position {wrong}: there are {len(self)} keys, from 0 on.")

    def __len__(self) -> int:
        """How many there are."""
        return len(self.strings if self._packed is None else self._packed)

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        """One of them, or some."""
        return self.strings[at]

    def __iter__(self) -> Iterator[bytes]:
        """One by one."""
        return iter(self.strings)


def different(suffixes: Packed) -> tuple[Suffixes, NDArray[np.int64]]:
    """The different ones of some suffixes, in stored order, and the place of each among them."""
    order, is_same = in_order(suffixes)
    places = np.empty(len(suffixes), np.int64)
    places[order] = np.cumsum(~is_same) - 1
    return Suffixes(suffixes.take(order[~is_same])), places


def behind_hashes(hashes: NDArray[np.uint32], keys: Packed) -> Packed:
    """The suffixes of some keys."""
    return keys.behind_heads(hashes.astype(">u4").view(np.uint8).reshape(-1, HASH_BYTES))
