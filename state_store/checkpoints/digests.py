"""Proof that rows were moved and not changed: the number of rows of a state, and a digest that ignores their order.

The digest of a state is the sum of the xxh3 (64 bits) of each row. The hashed bytes are the key without the state's
number, and the value; the seed is the length of the key. The digest therefore does not depend on partitions, on files,
or on the order of rows, and does not show which part of it is where. The sum does not wrap round: it has 128 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.json_objects import Count, Xxh3

_HEX_DIGITS = 32


class Digest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows of one state: their number, and the sum of their hashes in hexadecimal digits; None: not read."""

    rows: Count = 0
    sum: Xxh3 | None = "0" * _HEX_DIGITS

    def __add__(self, other: Digest) -> Digest:
        """Return the digest of both together."""
        if self.sum is None or other.sum is None:
            return Digest(self.rows + other.rows, None)
        return digest(self.rows + other.rows, int(self.sum, 16) + int(other.sum, 16))


Digests = Mapping[str, Digest]
"""Digests by state name."""


def digest(rows: int, total: int) -> Digest:
    """Return the digest of ``rows`` rows whose hashes add up to ``total``."""
    return Digest(rows, f"{total:0{_HEX_DIGITS}x}")


def combine(parts: Iterable[Digests]) -> dict[str, Digest]:
    """Return the digests of all parts together, state by state."""
    whole: dict[str, Digest] = {}
    for part in parts:
        for name, each in part.items():
            whole[name] = whole.get(name, Digest()) + each
    return whole


def require_equal(before: Digests, after: Digests, what: str) -> None:
    """Raise FormatError, naming the first state of ``what`` that differs, unless both are equal."""
    for name in sorted({*before, *after}):
        old, new = before.get(name, Digest()), after.get(name, Digest())
        if old != new:
            raise FormatError(
                f"{what}: state {name!r} had {old.rows} rows with the digest {old.sum}, but the result has {new.rows} "
                f"rows with the digest {new.sum}.",
                hint="The target is not usable: delete it, verify the source, and run the operation again.",
            )
