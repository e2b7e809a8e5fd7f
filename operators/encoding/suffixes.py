"""Suffixes of many keys: hash and bytes, which follow the number of the state in the keys of stored rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from pyspark_ckpt.state_store.arrays.order import in_order
from pyspark_ckpt.state_store.arrays.packed import Packed
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.keys import HASH_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Suffixes(Sequence[bytes]):
    """Suffixes in stored order, as objects and as columns. Each form is made from the other on first use."""

    def __init__(self, suffixes: Sequence[bytes] | Packed) -> None:
        """Keep the suffixes in the given form."""
        self._packed = suffixes if isinstance(suffixes, Packed) else None
        self._strings = None if isinstance(suffixes, Packed) else suffixes

    @property
    def packed(self) -> Packed:
        """The suffixes as columns."""
        if self._packed is None:
            self._packed = Packed.of(self.strings)
        return self._packed

    @property
    def strings(self) -> Sequence[bytes]:
        """The suffixes as separate objects."""
        if self._strings is None:
            self._strings = self.packed.strings()
        return self._strings

    def at(self, positions: NDArray[Any]) -> Suffixes:
        """Return the suffixes at ascending positions; this object if that is all of them. Raises InvalidInputError."""
        self._require(positions)
        if (positions[1:] <= positions[:-1]).any():
            raise InvalidInputError(
                "Positions of keys must be strictly ascending.", hint="Sort them, and leave out duplicates."
            )
        return self if len(positions) == len(self) else Suffixes(self.packed.take(positions))

    def each(self, positions: NDArray[Any]) -> Packed:
        """Return the suffixes at positions, which may be repeated and in any order. Raises InvalidInputError."""
        self._require(positions)
        return self.packed.take(positions if len(positions) else np.zeros(0, np.int64))

    def _require(self, positions: NDArray[Any]) -> None:
        """Raise InvalidInputError if a position is not an integer, or out of range."""
        if len(positions) and positions.dtype.kind not in "iu":
            raise InvalidInputError(f"Positions of keys must be integers, got type {positions.dtype}.")
        if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < len(self):
            wrong = int(positions.min() if positions.min() < 0 else positions.max())
            raise InvalidInputError(f"There is no key at position {wrong}: there are {len(self)} keys, counted from 0.")

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.strings if self._packed is None else self._packed)

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        """Return one of them, or some."""
        return self.strings[at]

    def __iter__(self) -> Iterator[bytes]:
        """Yield them one by one."""
        return iter(self.strings)


def different(suffixes: Packed) -> tuple[Suffixes, NDArray[np.int64]]:
    """Return the distinct suffixes in stored order, and for each given one its position among them."""
    order, is_same = in_order(suffixes)
    places = np.empty(len(suffixes), np.int64)
    places[order] = np.cumsum(~is_same) - 1
    return Suffixes(suffixes.take(order[~is_same])), places


def behind_hash(spark_hash: int, key: bytes) -> bytes:
    """Return the suffix of one key: its hash, a signed number, followed by its bytes."""
    return spark_hash.to_bytes(HASH_BYTES, "big", signed=True) + key


def behind_hashes(hashes: NDArray[np.uint32], keys: Packed) -> Packed:
    """Return the suffixes of some keys: each hash, followed by the key's bytes."""
    return keys.behind_heads(hashes.astype(">u4").view(np.uint8).reshape(-1, HASH_BYTES))
