"""Whether a query keeps up, by what it tells of its batches."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_ckpt.web.pace.batches import describe_batch, sum_phases
from pyspark_ckpt.web.pace.verdict import judge_logs, judge_progress


def progress(batch: int, *, come: float, done: float, end: int = 0, latest: int | None = None) -> dict[str, Any]:
    """The progress of a batch as Spark writes it, ten seconds after the one before."""
    return {
        "id": "q",
        "runId": "r",
        "batchId": batch,
        "timestamp": f"2026-01-01T00:{batch // 6:02}:{batch % 6 * 10:02}.000Z",
        "numInputRows": int(come * 10),
        "inputRowsPerSecond": come,
        "processedRowsPerSecond": done,
        "durationMs": {"addBatch": 700, "walCommit": 100, "triggerExecution": 1000},
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
    assert (told["backlog"], told["late_rows"], told["state_rows"], told["batch_ms"]) == (4, 2, 30, 1000)
    assert told["watermark_lag_ms"] == 90_000
    phases = sum_phases([told])
    assert [(each["phase"], each["median_ms"], each["share"]) for each in phases] == [
        ("addBatch", 700, 0.7),
        ("walCommit", 100, 0.1),
    ]


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
