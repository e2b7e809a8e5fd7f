"""The page tells of a local disk that is full: a query survives it, and is slow."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyspark_ckpt.web.application import Pages
from pyspark_ckpt.web.subjects import _summarize


@pytest.mark.parametrize("full", [0, 2])
def test_batches_with_a_full_disk_are_told_and_others_are_not(full: int) -> None:
    operators = [{"commitTimeMs": 3, "customMetrics": {"ckptFullDisks": full}}, {"customMetrics": {}}]
    batch: dict[str, Any] = {"batchId": 7, "timestamp": "now", "durationMs": {}, "stateOperators": operators}
    told = _summarize(batch)
    assert told["full_disks"] == full
    with ThreadPoolExecutor(1) as pool:
        page = Pages([], pool)._templates.get_template("progress.html").render(progress=[told])
    assert ("local folder was full" in page) == bool(full)
