"""What a query's progress says of the state's traffic, and of what a restore would take."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from integration.conftest import PARTITIONS
from integration.operators import test_aggregation
from integration.operators.providers import CHECKPOINT_FORMAT, OURS
from integration.operators.replay import collect_into, run, write_inputs
from integration.progress import recent_progress

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_CASE = replace(test_aggregation.CASES["window, watermark, append"], runs=(4,))


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_progress_shows_requests_and_the_forecast_of_a_restore(
    checkpoint_format: int, spark: SparkSession, tmp_path: Path
) -> None:
    write_inputs(_CASE, tmp_path, 0, 4)
    session = OURS.session(spark, **{CHECKPOINT_FORMAT: str(checkpoint_format)})
    finished = run(session, _CASE, tmp_path, collect_into({}))
    metrics = [operator.customMetrics for progress in recent_progress(finished) for operator in progress.stateOperators]
    assert len(metrics) >= 4
    for number, each in enumerate(metrics, 1):
        assert each["ckptWriteRequests"] >= PARTITIONS * (1 if checkpoint_format == 2 else 2)
        assert each["ckptUploadedBytes"] >= each["ckptDeltaBytes"] > 0
        assert each["ckptDeltasSinceSnapshot"] == PARTITIONS * number
        forecasts = [each[f"ckptRestoreForecastMs.partition_{partition}_default"] for partition in range(PARTITIONS)]
        assert min(forecasts) > 0
    assert metrics[-1]["ckptDeltaBytesSinceSnapshot"] == sum(each["ckptDeltaBytes"] for each in metrics)
    assert metrics[-1]["ckptTableFiles"] >= PARTITIONS
    assert metrics[-1]["ckptTableBytes"] > 0
    if checkpoint_format == 2:
        assert [each["ckptWriteRequests"] for each in metrics] == [PARTITIONS] * len(metrics)
        assert sum(each["ckptReadRequests"] for each in metrics) == 1, "of the number of the run, once"
