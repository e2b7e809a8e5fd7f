"""Byte strings become an array of Arrow as they are."""

from __future__ import annotations

import random

import numpy as np

from pyspark_ckpt.state_store.arrays.packed import Packed
from pyspark_ckpt.state_store.redistribution.canonical import _binary


def test_byte_strings_of_any_sizes_are_those_of_the_array() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        count = draw.randrange(50)
        strings = [draw.randbytes(draw.choice([0, 1, 5, 5, 5, draw.randrange(2000)])) for _ in range(count)]
        packed = Packed.of(strings)
        if seed % 2:  # some of them, in another order
            some = draw.sample(range(count), draw.randrange(count + 1))
            packed, strings = packed.take(np.array(some, np.int64)), [strings[index] for index in some]
        array = _binary(packed)
        array.validate(full=True)
        assert array.to_pylist() == strings, seed
