"""Damage that follows from a seed."""

from __future__ import annotations

import random

FLIPPED_BYTES = 600


def flip_bit(content: bytes, draw: random.Random) -> bytes:
    """Return bytes of which one bit has changed.

    The bit is at one distance from the beginning or the end: the table files of two runs of one seed differ in the
    middle, where RocksDB writes times and ids of its own, by some bytes.
    """
    distance = int(draw.random() * min(len(content), FLIPPED_BYTES))
    at = distance if draw.random() < 0.5 else len(content) - 1 - distance
    return content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]
