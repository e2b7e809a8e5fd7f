"""How long rows took through keyed operators in real-time mode."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark_ckpt.metrics.families import LIVE_GROUPS, latency_limits_ms
from pyspark_ckpt.offline.descriptions.json_forms import Fields


def describe_latency(operators: Sequence[Mapping[str, Any]], batch_s: float) -> Fields:
    """Return the latency of a batch's rows, and groups a second. Of several operators, the slowest one counts.

    ``operators``: those of a progress. Values are None for a micro-batch, latencies also for a batch without rows.
    """
    found = [each for operator in operators if (each := operator.get("customMetrics", {})).get(LIVE_GROUPS)]
    limits = latency_limits_ms()
    counts = [{limit: each.get(name, 0) for name, limit in limits.items()} for each in found]
    return {
        "latency_p50_ms": max(filter(None, (find_percentile(each, 0.5) for each in counts)), default=None),
        "latency_p99_ms": max(filter(None, (find_percentile(each, 0.99) for each in counts)), default=None),
        "groups_per_s": sum(each[LIVE_GROUPS] for each in found) / batch_s if found and batch_s > 0 else None,
    }


def find_percentile(counts: Mapping[float, int], share: float) -> float | None:
    """Return the value that a ``share`` of the counted ones does not exceed: None if nothing was counted.

    ``counts``: by their upper limits, in ascending order. Values are taken to lie evenly between two limits; those
    above the last finite limit, to be there.
    """
    wanted, below, last = share * sum(counts.values()), 0, 0.0
    if not wanted:
        return None
    for limit, count in counts.items():
        if below + count >= wanted and count:
            return last if math.isinf(limit) else last + (limit - last) * (wanted - below) / count
        below, last = below + count, limit
    return last
