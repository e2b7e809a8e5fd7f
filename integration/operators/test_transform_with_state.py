"""transformWithState, which Spark 4.3 runs on its own RocksDB provider only (docs/transform-with-state.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from integration.operators import inputs
from integration.operators.replay import Case, replay

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

    from integration.operators.providers import Provider


class _Echo(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        """Needs no state: the operator alone is what is refused."""

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,  # noqa: ANN401, ARG002 - Spark's signature
        rows: Iterator[Any],
        timerValues: Any,  # noqa: ANN401, ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        for frame in rows:
            yield frame[["user"]]

    def close(self) -> None:
        """Nothing is open."""


def _echo(frames: Sequence[DataFrame]) -> DataFrame:
    return frames[0].groupBy("user").transformWithStateInPandas(_Echo(), "user int", "Update", "None")


def test_transform_with_state_names_the_provider_when_the_query_starts(
    spark: SparkSession, provider: Provider, tmp_path: Path
) -> None:
    case = Case(_echo, (inputs.events(seed=16),), "update", runs=(1,))
    with pytest.raises(StreamingQueryException, match=rf"{provider.provider_class} is not supported"):
        replay(spark, case, provider, tmp_path)
