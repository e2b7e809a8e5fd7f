"""What a user's own code raises says in the query's error of which operator, key, partition and batch it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

import pyspark_ckpt as ckpt
from integration.operators.keyed import EVENTS, TOTALS, Totals, keyed, play

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

    from integration.operators.replay import Query


class Unlucky(Totals):
    """Fails for one key."""

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        yield from super().process(ctx, key, rows)
        if key.user == 3:
            raise LookupError("nobody knows this one")


def unlucky(key: Any, frames: Iterator[pd.DataFrame], _state: GroupState, totals: Totals) -> Iterator[pd.DataFrame]:  # noqa: ANN401
    """Fail for one group."""
    totals.rows.update(sum(map(len, frames)))
    if key[0] == 3:
        raise LookupError("nobody knows this one")
    yield from ()


def of_groups(frames: Sequence[DataFrame]) -> DataFrame:
    """The function, in Spark's own operator."""
    called = ckpt.with_states(unlucky, Totals(), uid="it")
    grouped: DataFrame = (
        frames[0].groupBy("user").applyInPandasWithState(called, TOTALS, "n int", "update", "NoTimeout")
    )
    return grouped


@pytest.mark.parametrize(
    ("query", "who", "key"),
    [
        (keyed(Unlucky(), TOTALS), "Unlucky.process() of keyed operator 'it'", "user=3"),
        (of_groups, "The function of with_states(uid='it')", "3"),
    ],
    ids=["keyed", "with_states"],
)
def test_an_error_of_the_users_own_says_where_it_was(
    query: Query, who: str, key: str, spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(StreamingQueryException) as failed:
        play(spark, query, EVENTS, tmp_path)
    text = str(failed.value)
    assert f"{who} failed for key (" in text
    assert key in text.partition("failed for key (")[2][:60]
    assert "LookupError: nobody knows this one" in text
    assert ", batch " in text
