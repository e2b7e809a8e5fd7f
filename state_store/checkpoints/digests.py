"""Proof that rows have been moved and not changed: how many there are of a state, and a digest of them in any order.

The digest of a state is the sum of the xxh3 (64 bits) of each row: of its key without the state's number, and its
value, with the length of the key as the seed. So it does not depend on partitions, on files, or on the order of rows,
and it cannot be told from the whole which part of it is where. The sum does not wrap round: it has 128 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.json_objects import Count

_HEX_DIGITS = 32


class Digest(msgspec.Struct, frozen=True):
    """Rows of one state: their number, and the sum of what each hashes to, in hexadecimal digits; None: not read."""

    rows: Count = 0
    sum: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")] | None = "0" * _HEX_DIGITS

    def __add__(self, other: Digest) -> Digest:
        """Of both together."""
        if self.sum is None or other.sum is None:
            return Digest(self.rows + other.rows, None)
        return digest(self.rows + other.rows, int(self.sum, 16) + int(other.sum, 16))


Digests = Mapping[str, Digest]
"""By the names of states."""


def digest(rows: int, total: int) -> Digest:
    """Of so many rows whose hashes add up to ``total``."""
    return Digest(rows, f"{total:0{_HEX_DIGITS}x}")


def combine(parts: Iterable[Digests]) -> dict[str, Digest]:
    """All parts together, state by state."""
    whole: dict[str, Digest] = {}
    for part in parts:
        for name, each in part.items():
            whole[name] = whole.get(name, Digest()) + each
    return whole


def require_equal(before: Digests, after: Digests, what: str) -> None:
    """Raise FormatError that names the first state of ``what`` that is not after what it was before."""
    for name in sorted({*before, *after}):
        old, new = before.get(name, Digest()), after.get(name, Digest())
        if old != new:
            raise FormatError(
                f"{what}: state {name!r} had {old.rows} rows with the digest {old.sum}, "
                f"and what was made of it has {new.rows} with {new.sum}.",
                hint="The target is not usable: delete it, verify the source, and run the operation again.",
            )
