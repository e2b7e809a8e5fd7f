"""The page tells of a local disk that is full: a query survives it, and is slow."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyspark_ckpt.web.application import Pages
from pyspark_ckpt.web.pace.batches import describe_batch

SHOWN: dict[str, Any] = {
    "release": "",
    "refresh_s": 5,
    "path": "/c/0/progress",
    "checkpoint": None,
    "source": "query",
    "verdict": {"keeps_up": None, "busy_share": None, "backlog_per_s": None, "why": ""},
    "watermark_age_s": None,
    "late_rows": 0,
    "phases": [],
    "sizes": [],
}


@pytest.mark.parametrize("full", [0, 2])
def test_batches_with_a_full_disk_are_told_and_others_are_not(full: int) -> None:
    operators = [{"commitTimeMs": 3, "customMetrics": {"ckptFullDisks": full}}, {"customMetrics": {}}]
    batch = {"batchId": 7, "timestamp": "2026-01-01T00:00:00.000Z", "durationMs": {}, "stateOperators": operators}
    told = describe_batch(batch)
    assert told["full_disks"] == full
    with ThreadPoolExecutor(1) as pool:
        template = Pages([], pool)._templates.get_template("progress.html")
        page = template.render(**SHOWN, newest=told, progress=[told])
    assert ("local folder was full" in page) == bool(full)
