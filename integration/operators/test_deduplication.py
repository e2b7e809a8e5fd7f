"""``dropDuplicates`` and ``dropDuplicatesWithinWatermark``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.operators import inputs
from integration.operators.replay import Case
from integration.sample import sampled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from integration.operators.conftest import Compare

_REPEATS = (inputs.repeats(seed=5),)


def _timely(frames: Sequence[DataFrame]) -> DataFrame:
    return frames[0].withWatermark("at", "15 minutes")


CASES = {
    "columns": Case(lambda frames: frames[0].dropDuplicates(["user", "word"]), _REPEATS),
    "all columns": Case(lambda frames: frames[0].dropDuplicates(), _REPEATS),
    "columns, update": Case(lambda frames: frames[0].dropDuplicates(["id"]), _REPEATS, "update"),
    "event time among the columns": Case(lambda frames: _timely(frames).dropDuplicates(["id", "at"]), _REPEATS),
    "event time not among the columns": Case(lambda frames: _timely(frames).dropDuplicates(["word"]), _REPEATS),
    "zeroes, NaN and null": Case(lambda frames: frames[0].dropDuplicates(), (inputs.numbers(),)),
    "all types": Case(lambda frames: frames[0].dropDuplicates(), (inputs.kinds(seed=6),)),
    "within watermark, columns": Case(
        lambda frames: _timely(frames).dropDuplicatesWithinWatermark(["user", "word"]), _REPEATS
    ),
    "within watermark, all columns": Case(
        lambda frames: _timely(frames).dropDuplicatesWithinWatermark(), _REPEATS, "update"
    ),
}


_LEFT_OUT = {
    "columns",
    "all columns",
    "event time not among the columns",
    "within watermark, all columns",
}


@pytest.mark.parametrize("name", sampled(CASES, _LEFT_OUT))
def test_deduplication_equals_sparks_when_replayed_with_a_restart(name: str, compare: Compare) -> None:
    compare(CASES[name])
