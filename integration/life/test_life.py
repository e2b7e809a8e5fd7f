"""One random life of a keyed program; ``python -m integration.life`` and ``make soak`` play many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.life.play import play
from tests.life.course import Course

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.in_turn
@pytest.mark.spark
@pytest.mark.parametrize("seed", [5, 10, pytest.param(6, marks=pytest.mark.matrix)])
def test_a_keyed_program_tells_what_dicts_tell_wherever_it_goes_on(
    seed: int, spark: SparkSession, tmp_path: Path
) -> None:
    assert play(spark, Course.of(seed, batches=5), tmp_path) > 100
