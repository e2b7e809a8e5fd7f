"""Whether a query keeps up, by what it tells of its batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

from pyspark_ckpt.web.pace.batches import describe_batch, describe_batches, sum_phases
from pyspark_ckpt.web.pace.verdict import judge_logs, judge_progress
from pyspark_ckpt.web.subjects import ask


def progress(batch: int, *, come: float, done: float, end: int = 0, latest: int | None = None) -> dict[str, Any]:
    """The progress of a batch as Spark writes it, ten seconds after the one before.

    ``come`` and ``done``: rows in a second. A batch takes as long as its rows need, of which ten seconds come.
    """
    return {
        "id": "q",
        "runId": "r",
        "batchId": batch,
        "timestamp": f"2026-01-01T00:{batch // 6:02}:{batch % 6 * 10:02}.000Z",
        "numInputRows": int(come * 10),
        "inputRowsPerSecond": come,
        "processedRowsPerSecond": done,
        "durationMs": {"addBatch": 700, "walCommit": 100, "triggerExecution": int(10_000 * come / done)},
        "eventTime": {"watermark": "2025-12-31T23:59:00.000Z"},
        "stateOperators": [
            {"numRowsTotal": 10 * batch, "memoryUsedBytes": 5, "numRowsDroppedByWatermark": 2, "commitTimeMs": 3}
        ],
        "sources": [{"endOffset": {"t": {"0": end}}, "latestOffset": None if latest is None else {"t": {"0": latest}}}],
    }


def judge(batches: list[dict[str, Any]]) -> Any:  # noqa: ANN401
    return judge_progress(batches, [describe_batch(each) for each in reversed(batches)])


@pytest.mark.parametrize(
    ("batches", "keeps_up"),
    [
        ([progress(n, come=10, done=100) for n in range(6)], True),
        ([progress(n, come=100, done=100) for n in range(6)], None),
        ([progress(n, come=100, done=100, end=100 * n, latest=300 * n + 9) for n in range(6)], False),
        ([progress(n, come=100, done=100, end=300 * n, latest=900 + 100 * n + 800) for n in range(6)], True),
        ([progress(0, come=100, done=100)], None),
        ([], None),
    ],
    ids=["waits", "busy, unknown", "backlog grows", "backlog shrinks", "first batch", "none"],
)
def test_a_query_keeps_up_if_it_waits_or_its_backlog_does_not_grow(
    batches: list[dict[str, Any]],
    keeps_up: bool | None,  # noqa: FBT001
) -> None:
    verdict = judge(batches)
    assert verdict["keeps_up"] is keeps_up
    assert verdict["why"]


def test_the_growth_of_the_backlog_is_told_in_a_second() -> None:
    batches = [progress(n, come=100, done=100, end=100 * n, latest=150 * n) for n in range(5)]
    assert judge(batches)["backlog_per_s"] == pytest.approx(5.0)


def test_a_batch_has_its_rates_phases_watermark_and_state() -> None:
    told = describe_batch(progress(3, come=10, done=40, end=5, latest=9))
    assert (told["backlog"], told["late_rows"], told["state_rows"], told["batch_ms"]) == (4, 2, 30, 2500)
    assert told["watermark_lag_ms"] == 90_000
    phases = sum_phases([told])
    assert [(each["phase"], each["median_ms"], each["share"]) for each in phases] == [
        ("addBatch", 700, 0.28),
        ("walCommit", 100, 0.04),
    ]


def test_idle_time_counts_although_spark_counts_its_rate_from_the_last_look_at_the_sources() -> None:
    """A query without a trigger interval looks for rows all the time, so rows a moment later make a large rate."""
    batches = [progress(n, come=10, done=100) for n in range(3)]
    for each in batches:
        each["inputRowsPerSecond"] = 15_384.0
    idle = progress(5, come=10, done=100)
    idle["numInputRows"], idle["durationMs"] = 0, {"latestOffset": 5, "triggerExecution": 5}
    verdict = judge([*batches, idle])
    assert (verdict["keeps_up"], verdict["busy_share"]) == (True, pytest.approx(2 / 40, rel=0.01))
    assert [each["input_rows_per_s"] for each in describe_batches(batches)] == [10.0, 10.0, None]


def test_the_progress_of_pyspark_is_read_as_of_any_other_json() -> None:
    """From Spark 4.0 on it is a dict with ids that are no text."""
    query = SimpleNamespace(
        recentProgress=[StreamingQueryProgress.fromJson(complete(progress(n, come=10, done=100))) for n in range(4)],
        isActive=True,
        name="visits",
        exception=lambda: None,
    )
    run = ask(query)
    assert (run.problem, run.verdict["keeps_up"], len(run.batches)) == ("", True, 4)


def complete(told: dict[str, Any]) -> dict[str, Any]:
    """A progress with all that PySpark asks of one."""
    operator = {
        **dict.fromkeys(("allUpdatesTimeMs", "allRemovalsTimeMs", "numRowsUpdated", "numRowsRemoved"), 0),
        **dict.fromkeys(("numShufflePartitions", "numStateStoreInstances"), 2),
        "operatorName": "stateStoreSave",
        "customMetrics": {},
    }
    source = {"description": "rate", "startOffset": "1", "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0}
    return {
        **told,
        "id": str(UUID(int=1)),
        "runId": str(UUID(int=2)),
        "name": "visits",
        "batchDuration": 1000,
        "stateOperators": [{**operator, **each} for each in told["stateOperators"]],
        "sources": [
            {**source, **each, "numInputRows": 1, "endOffset": "2", "latestOffset": "2"} for each in told["sources"]
        ],
        "sink": {"description": "noop", "numOutputRows": 0},
    }


@pytest.mark.parametrize(
    ("times", "keeps_up", "busy"),
    [
        ([(0.0, 1.0), (10.0, 11.0), (20.0, 21.0)], True, 0.1),
        ([(0.0, 10.0), (10.1, 20.0), (20.1, 30.0)], None, 0.99),
        ([(5.0, 5.0), (5.0, 5.0)], None, None),
        ([], None, None),
    ],
)
def test_logs_show_whether_a_query_waits_between_its_batches(
    times: list[tuple[float, float]],
    keeps_up: bool | None,  # noqa: FBT001
    busy: float | None,
) -> None:
    verdict = judge_logs(times)
    assert verdict["keeps_up"] is keeps_up
    assert verdict["busy_share"] == (busy if busy is None else pytest.approx(busy, rel=0.01))
