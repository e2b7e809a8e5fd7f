"""Layout of the keys of all rows of a store, and the version marker.

All rows of all states of a store are in the default column family of one database::

    hashed state    state:u16be · hash:u32be · user key          numbers 0x0001..0x3FFF, keyed ones 0x4000..0x7FFE
    ordered state   state:u16be · user key · hash:u32be          numbers 0x8001..0xBFFF, keyed ones 0xC000..0xFFFE
    version marker  00 00 'm'  ->  version:u64be · id (ASCII)    number 0x0000, one row

Each state is a contiguous range of keys. In a hashed state, each range of hashes is contiguous as well. Ordered states
are scanned in key order, so their hash comes after the key. Keyed states are those of keyed operators: the Python
worker assigns their numbers on its own. State numbers are never reused within the life of a store. The examples in
``tests/golden/keys.json`` are also read by the tests of the JVM.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from pyspark_ckpt.state_store.errors import FormatError
from pyspark_ckpt.state_store.json_objects import CommitId, is_a

MARKER_KEY = b"\x00\x00m"
ORDERED_BIT = 0x8000
LAST_COUNTER = 0x3FFF
FIRST_KEYED_COUNTER = 0x4000
LAST_KEYED_COUNTER = 0x7FFE

_STATE = struct.Struct(">H")
_HASH = struct.Struct(">I")
_VERSION = struct.Struct(">Q")
STATE_BYTES = _STATE.size
HASH_BYTES = _HASH.size

EMPTY_ID = "0"


class Marker(NamedTuple):
    """Which commit a database holds: the version, and the id that tells the commit from its siblings."""

    version: int
    id: str

    def encode(self) -> bytes:
        """Return the value of the marker row."""
        return _VERSION.pack(self.version) + self.id.encode("ascii")

    @classmethod
    def decode(cls, value: bytes) -> Marker:
        """Read the value of a marker row. Raises FormatError if it is not a marker."""
        identity = value[_VERSION.size :].decode("ascii", errors="replace")
        if len(value) <= _VERSION.size or not is_id(identity):
            raise FormatError(f"The version marker row has the value {value[:64]!r}, which is not a marker.")
        return cls(_VERSION.unpack_from(value)[0], identity)

    def __str__(self) -> str:
        """Return version and id as messages show them."""
        return f"version {self.version} (id {self.id})"


EMPTY = Marker(0, EMPTY_ID)
"""Version 0 of every store: no rows, no marker row."""


def is_id(text: str) -> bool:
    """Return whether ``text`` may be a commit id: 1 to 128 ASCII letters, digits, ``_`` and ``.`` (no ``-``)."""
    return is_a(CommitId, text)


def encode_hashed_key(state: int, partition_hash: int, user_key: bytes) -> bytes:
    """Return the key of a row of a hashed state. ``partition_hash`` is unsigned."""
    return _STATE.pack(state) + _HASH.pack(partition_hash) + user_key


def encode_ordered_key(state: int, user_key: bytes, partition_hash: int) -> bytes:
    """Return the key of a row of an ordered state. ``partition_hash`` is unsigned."""
    return _STATE.pack(state) + user_key + _HASH.pack(partition_hash)


def state_number(counter: int, *, ordered: bool) -> int:
    """Return the state number of the ``counter``-th state (from 1) that a store has ever had."""
    return counter | ORDERED_BIT if ordered else counter


def read_hash(key: bytes) -> int:
    """Return the unsigned hash in the key of a row other than the marker: after the state number, or at the end."""
    at = len(key) - HASH_BYTES if key[0] & (ORDERED_BIT >> 8) else STATE_BYTES
    return int(_HASH.unpack_from(key, at)[0])


def state_head(state: int) -> bytes:
    """Return the bytes with which the keys of all rows of ``state`` begin."""
    return _STATE.pack(state)


def state_range(state: int) -> tuple[bytes, bytes]:
    """Return the range of the keys of all rows of ``state``; the end is exclusive."""
    return state_head(state), state_head(state + 1)
