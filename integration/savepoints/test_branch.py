"""A branch goes on beside the query that it was made of, and neither sees the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.savepoints.test_running import BUSY, Sink, expected, running
from pyspark_ckpt.moving import branch

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def _retaining(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUSY, "spark.sql.streaming.minBatchesToRetain", "100")


@pytest.mark.usefixtures("_retaining")
def test_a_branch_of_a_running_query_goes_on_beside_it(spark: SparkSession, tmp_path: Path) -> None:
    sink, own, earlier = Sink(), Sink(), Sink()
    with running(spark, tmp_path / "query", sink, 2) as query:
        sink.await_batch(4)
        done = branch(query, tmp_path / "branch")
        back = branch(query, tmp_path / "earlier", batch=2)
        assert len({done.query_id, back.query_id, query.id}) == 3
        with running(spark, tmp_path / "branch", own, 2), running(spark, tmp_path / "earlier", earlier, 2):
            own.await_batch(done.version + 2)
            earlier.await_batch(5)
            sink.await_batch(done.version + 4)
    for shown, first in ((sink.shown, 0), (own.shown, done.version), (earlier.shown, 3)):
        assert shown == [(batch, expected(batch)) for batch in range(first, first + len(shown))]
