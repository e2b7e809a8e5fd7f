"""Checksums of rows: those of CRC-32C, and every flipped bit is told."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pyspark_ckpt.offline.adopting.records import Change
from pyspark_ckpt.offline.adopting.row_sums import add_sums, check_changes, compute_sums, strip_sums
from pyspark_ckpt.state_store.arrays.packed import Packed
from pyspark_ckpt.state_store.errors import FormatError

KNOWN = {
    b"": 0,
    b"123456789": 0xE3069283,
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
}
"""From RFC 3720, and the check of CRC-32C."""


def test_sums_are_those_of_crc_32c_for_strings_of_many_lengths() -> None:
    assert dict(zip(KNOWN, compute_sums(Packed.of(list(KNOWN))).tolist(), strict=True)) == KNOWN
    draw = random.Random(1)
    strings = [draw.randbytes(draw.randrange(40)) for _ in range(300)]
    together = compute_sums(Packed.of(strings))
    assert [int(compute_sums(Packed.of([each]))[0]) for each in strings] == together.tolist()
    assert compute_sums(Packed.of([])).dtype == np.uint32


@pytest.mark.parametrize("are_sized", [True, False])
def test_what_gets_sums_is_read_again_and_each_flipped_bit_is_an_error(*, are_sized: bool) -> None:
    draw = random.Random(2)
    keys = [draw.randbytes(draw.randrange(1, 20)) for _ in range(40)]
    values = [
        [draw.randbytes(draw.randrange(9)) for _ in range(draw.randrange(1, 4) if are_sized else 1)] for _ in keys
    ]
    for delimiter in (b"", b","):
        with_sums = add_sums(keys, values, are_sized=are_sized, delimiter=delimiter)
        stored = list(zip(keys, with_sums, strict=True))
        plain = [(key, delimiter.join(own)) for key, own in zip(keys, values, strict=True)]
        assert strip_sums(stored, "the store", are_sized=are_sized, delimiter=delimiter) == plain
    assert strip_sums([], "the store", are_sized=are_sized, delimiter=b"") == []
    for number in range(100):
        row, part = draw.randrange(len(stored)), number % 2
        damaged = bytearray(stored[row][part])
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        changed = [*stored]
        changed[row] = (bytes(damaged), stored[row][1]) if part == 0 else (stored[row][0], bytes(damaged))
        with pytest.raises(FormatError, match="the store"):
            strip_sums(changed, "the store", are_sized=are_sized, delimiter=b",")


def test_deletions_in_a_log_have_a_sum_of_their_key() -> None:
    (stored,) = add_sums([b""], [[b"key"]], are_sized=False, delimiter=b"")
    changes = [Change(b"other", b"value with its sum"), Change(stored, None)]
    assert list(check_changes(changes, "the log")) == [changes[0], Change(b"key", None)]
    for wrong in (stored[:-1] + b"Y", b"abc"):
        with pytest.raises(FormatError, match="the log"):
            list(check_changes([Change(wrong, None)], "the log"))
