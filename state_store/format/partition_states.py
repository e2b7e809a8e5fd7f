"""Rows of states that belong to a partition of a keyed operator rather than to a key.

::

    element of a list       state:u16be · partition:u32be · version:u64be · number:u32be  ->  value
    entry of a broadcast    state:u16be · 0:u32be · map key                               ->  value

They have a partition where other rows have a hash, and their numbers are those of hashed states. The elements of a list
are in the order of adding: by the version of their commit, and by their number in it. A redistributed list has version
0 and new numbers. The copies of a broadcast state have the same bytes in all partitions.
"""

from __future__ import annotations

import enum
import struct

from msgspec import UNSET

from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.format.keys import HASH_BYTES, state_head
from pyspark_ckpt.state_store.format.meta import StateMeta

SCOPE = "scope"
"""The field of a descriptor's encoder that has the Scope."""
_ELEMENT = struct.Struct(">QI")
ELEMENT_BYTES = _ELEMENT.size
MAX_ELEMENTS = 1 << 32
"""How many elements one commit may add to a list, and how many a redistributed list may have."""


class Scope(enum.Enum):
    """What happens to a state of a partition on a restore or redistribution of the operator's state."""

    SPLIT = "split"
    """The lists of all partitions are joined, in their order, and split into parts of the same length."""
    UNION = "union"
    """Each partition gets the lists of all partitions."""
    BROADCAST = "broadcast"
    """All partitions have the same map, and each new one gets a copy."""


def find_scope(state: StateMeta) -> Scope | None:
    """Return the scope of a state; None if it belongs to keys. Raises FormatError (an unknown scope)."""
    found = state.descriptor.encoder.get(SCOPE)
    try:
        return None if found is None else Scope(found)
    except ValueError as problem:
        raise FormatError(f"State {state.name!r} has the scope {found!r}, which is unknown.") from problem


def encode_list_head(state: int, partition: int) -> bytes:
    """Return the bytes with which the keys of all elements of a partition's list begin."""
    return state_head(state) + partition.to_bytes(HASH_BYTES, "big")


def encode_broadcast_head(state: int) -> bytes:
    """Return the bytes with which the keys of all entries of a broadcast state begin."""
    return state_head(state) + bytes(HASH_BYTES)


def encode_element(version: int, number: int) -> bytes:
    """Return the rest of the key of an element."""
    return _ELEMENT.pack(version, number)


def encode_sum(total: int) -> str:
    """Return the digest of rows whose hashes add up to ``total``: see ``state_store.checkpoints.digests``."""
    return f"{total:032x}"


def read_digest(state: StateMeta) -> str:
    """Return the digest of a broadcast state. Raises FormatError (it has rows but no digest)."""
    if state.digest is not UNSET:
        return state.digest
    if state.rows:
        raise FormatError(f"Broadcast state {state.name!r} has {state.rows} entries but no digest.")
    return encode_sum(0)
