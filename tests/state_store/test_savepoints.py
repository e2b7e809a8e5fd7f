"""Savepoints, restores and rescaling without Spark: rows stay what they are, wherever they go."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from pyspark_ckpt import savepoints
from tests.saved_query import stored, written

NUMBERS = (1, 2, 3, 4, 7, 8, 16)


@pytest.mark.parametrize("seed", range(2))
def test_every_row_is_in_its_partition_when_a_query_is_rescaled_again_and_again(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    walk = [draw.choice(NUMBERS), *draw.sample(NUMBERS, 4)]
    walk = [number for number, after in pairwise((*walk, walk[0])) if number != after] + [walk[0]]
    query = written(tmp_path / "0", walk[0], seed=seed)
    for step, partitions in enumerate(walk[1:], 1):
        savepoints.rescale(str(tmp_path / f"{step - 1}"), str(tmp_path / str(step)), partitions)
        assert stored(str(tmp_path / str(step))) == (query.version, partitions, query.rows), f"{seed}: {walk}"
