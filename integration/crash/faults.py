"""Which step is killed in which query, under which checkpoint format: a pairwise sample, or all of them to soak."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product

from integration.crash.driver import FORMAT, OPTIONS
from integration.crash.workload import QUERIES
from pyspark_ckpt.pyspark_releases import has_commit_ids_for_all
from pyspark_ckpt.state_store.failpoints import NAMES

FORMATS = (1, 2) if has_commit_ids_for_all() else (1,)
NEWEST = FORMATS[-1]
"""The newest checkpoint format of this Spark. The reference has none but these."""
FAIL_POINTS = f"{OPTIONS}failPoints"
SOAK = os.environ.get("CKPT_CRASH") == "soak"

Scenario = tuple[str, str, int]


def sample() -> list[Scenario]:
    """(step, query, format): every step once, or with ``CKPT_CRASH=soak`` everywhere."""
    points = sorted(NAMES)
    if SOAK:
        return list(product(points, QUERIES, FORMATS))
    return [(point, QUERIES[n % len(QUERIES)], FORMATS[(n // 2) % len(FORMATS)]) for n, point in enumerate(points)]


def label(scenario: Scenario) -> str:
    """Name of a scenario among the tests."""
    point, name, version = scenario
    return f"{point}-{name}-v{version}"


def few(scenarios: list[Scenario]) -> list[Scenario]:
    """The scenarios named here; with ``CKPT_CRASH=soak`` everything."""
    return sample() if SOAK else scenarios


def armed(point: str, action: str, checkpoint_format: int) -> dict[str, str]:
    """Conf of a query whose state server acts at ``point``, not in its first task."""
    return {FORMAT: str(checkpoint_format), FAIL_POINTS: _entry(point, action)}


def all_armed(
    points: Sequence[str], action: str, checkpoint_format: int, pass_number: int | None = None
) -> dict[str, str]:
    """As ``armed``, at several points; ``pass_number``: when each is passed for that time."""
    entries = ",".join(_entry(point, action, pass_number) for point in points)
    return {FORMAT: str(checkpoint_format), FAIL_POINTS: entries}


def _entry(point: str, action: str, pass_number: int | None = None) -> str:
    later = 2 if point.startswith(("begin", "commit")) else 1
    return f"{point}:{action}@{pass_number or later}"
