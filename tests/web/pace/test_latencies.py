"""Latencies of batches in real-time mode."""

from __future__ import annotations

import math
import random

from pyspark_ckpt.metrics.families import latency_limits_ms
from pyspark_ckpt.web.pace.batches import describe_batch
from pyspark_ckpt.web.pace.latencies import find_percentile


def live(groups: int, **rows: int) -> dict[str, object]:
    custom = dict.fromkeys(latency_limits_ms(), 0) | {f"ckptLiveRows.{name}": n for name, n in rows.items()}
    return {"operatorName": "keyed(uid='a')", "customMetrics": {**custom, "ckptLiveGroups": groups}}


def test_a_batch_has_the_latency_of_its_slowest_operator() -> None:
    operators = [live(40, up_to_2_ms=50, up_to_5_ms=50), live(10, up_to_5_ms=100), {"operatorName": "dedupe"}]
    told = describe_batch({"durationMs": {"triggerExecution": 5000}, "stateOperators": operators})
    assert told["latency_p50_ms"] == 4
    assert math.isclose(told["latency_p99_ms"], 3 + 2 * 0.99)
    assert told["groups_per_s"] == 10


def test_a_micro_batch_and_one_without_rows_have_none() -> None:
    assert describe_batch({"stateOperators": [{"customMetrics": {"ckptLiveRows": 1}}]})["latency_p50_ms"] is None
    told = describe_batch({"durationMs": {"triggerExecution": 2000}, "stateOperators": [live(7)]})
    assert (told["latency_p50_ms"], told["latency_p99_ms"], told["groups_per_s"]) == (None, None, 3.5)


def test_latencies_above_the_last_limit_are_shown_as_it() -> None:
    told = describe_batch({"durationMs": {"triggerExecution": 1}, "stateOperators": [live(1, later=3)]})
    assert told["latency_p50_ms"] == 10_000


def test_a_percentile_is_between_the_limits_where_the_value_is() -> None:
    limits = list(latency_limits_ms().values())
    draw = random.Random(8)
    for _ in range(300):
        values = sorted(draw.expovariate(1 / draw.choice([1, 10, 300])) for _ in range(draw.randint(1, 200)))
        counts = dict.fromkeys(limits, 0)
        for value in values:
            counts[next(limit for limit in limits if value <= limit)] += 1
        for share in (0.01, 0.5, 0.99, 1):
            exact = values[math.ceil(share * len(values)) - 1]
            upper = next(limit for limit in limits if exact <= limit)
            lower = max((limit for limit in limits if limit < exact), default=0)
            found = find_percentile(counts, share)
            assert found is not None
            assert lower <= found <= upper
