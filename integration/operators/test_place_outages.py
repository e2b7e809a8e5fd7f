"""A query whose place of state is away for a while: it waits, says so in its progress, and its output is right."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from integration.operators import test_aggregation
from integration.operators.providers import CHECKPOINT_FORMAT, OURS
from integration.operators.replay import Lines, collect_into, run, write_inputs
from integration.progress import recent_progress
from tests.faults.outages import KINDS, wire

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.services.s3_server import S3Service

_CASE = replace(test_aggregation.CASES["window, watermark, append"], runs=(6,))
_PREFIX = "spark.sql.streaming.stateStore.ckpt."


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("kind", "seconds", "checkpoint_format"),
    [
        ("refused", 2, 1),
        *(pytest.param(kind, seconds, 2, marks=pytest.mark.matrix) for kind in KINDS for seconds in (5, 30)),
    ],
)
def test_a_query_waits_when_its_place_is_away_between_and_during_batches(
    kind: str, seconds: float, checkpoint_format: int, spark: SparkSession, s3: S3Service, tmp_path: Path
) -> None:
    """Spark itself repeats nothing here: a task that fails once ends the query."""
    there = urlsplit(s3.endpoint)
    calm, stormy = dict[int, Lines](), dict[int, Lines]()
    write_inputs(_CASE, tmp_path / "calm", 0, 6)
    run(OURS.session(spark), _CASE, tmp_path / "calm", collect_into(calm))
    write_inputs(_CASE, tmp_path / "stormy", 0, 6)
    with wire((str(there.hostname), int(there.port or 0))) as cut:
        session = OURS.session(
            spark,
            **{
                CHECKPOINT_FORMAT: str(checkpoint_format),
                f"{_PREFIX}remote": s3.new_folder(),
                f"{_PREFIX}s3Endpoint": f"http://127.0.0.1:{cut.port}",
                f"{_PREFIX}s3Addressing": "path",
            },
        )
        began, ended = threading.Event(), threading.Event()

        def come_and_go() -> None:
            began.wait()
            while not ended.is_set():
                with cut.outage(kind):
                    ended.wait(seconds)
                ended.wait(0.5 if seconds < 5 else 2 * seconds)  # a try that fell silent takes ten seconds

        thread = threading.Thread(target=come_and_go)
        thread.start()
        keep = collect_into(stormy)

        def collect(frame: object, batch_id: int) -> None:
            keep(frame, batch_id)  # type: ignore[arg-type]
            began.set()

        try:
            finished = run(session, _CASE, tmp_path / "stormy", collect)
        finally:
            began.set()
            ended.set()
            thread.join()
    assert stormy == calm
    metrics = [operator.customMetrics for progress in recent_progress(finished) for operator in progress.stateOperators]
    assert sum(each["ckptPlaceWaitTimeMs"] for each in metrics) > 0


def test_a_query_that_is_stopped_while_it_waits_leaves_its_cores_to_others(
    spark: SparkSession, s3: S3Service, tmp_path: Path
) -> None:
    there = urlsplit(s3.endpoint)
    with wire((str(there.hostname), int(there.port or 0))) as cut:
        session = OURS.session(
            spark,
            **{
                CHECKPOINT_FORMAT: "2",
                f"{_PREFIX}remote": s3.new_folder(),
                f"{_PREFIX}s3Endpoint": f"http://127.0.0.1:{cut.port}",
                f"{_PREFIX}s3Addressing": "path",
                f"{_PREFIX}placeTimeout": "10m",
            },
        )
        counts = session.readStream.format("rate").option("rowsPerSecond", 50).load().groupBy("value").count()
        writer = counts.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.format("noop").start()
        while query.lastProgress is None:
            query.awaitTermination(1)
        with cut.outage("silent"):
            query.awaitTermination(3)  # its tasks wait by now
            query.stop()
            group = "after the query"
            spark.sparkContext.setJobGroup(group, group, interruptOnCancel=True)
            give_up = threading.Timer(60, spark.sparkContext.cancelJobGroup, [group])
            give_up.start()
            assert spark.range(0, 100, 1, 2).selectExpr("sum(id)").first() == (4950,)
            give_up.cancel()
        assert query.exception() is None


def test_progress_shows_no_requests_to_the_checkpoint_when_state_is_elsewhere(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_inputs(_CASE, tmp_path, 0, 3)
    session = OURS.session(spark, **{CHECKPOINT_FORMAT: "2", f"{_PREFIX}remote": str(tmp_path / "elsewhere")})
    finished = run(session, _CASE, tmp_path, collect_into({}))
    metrics = [operator.customMetrics for progress in recent_progress(finished) for operator in progress.stateOperators]
    written = sum(path.suffix in (".delta", ".winner") for path in (tmp_path / "elsewhere").rglob("*"))
    assert sum(each["ckptWriteRequests"] for each in metrics) == written
    assert sum(each["ckptReadRequests"] for each in metrics) == 0
    assert {each["ckptPlaceWaitTimeMs"] for each in metrics} == {0}
