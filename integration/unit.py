"""Which tests ``make unit`` runs: quick ones that need no JVM and no service. All of them end in a minute."""

from __future__ import annotations

import pytest

MARKS = ("spark", "cluster", "kill", "slow", "in_turn", "matrix")
SERVICES = {"s3", "gcs", "azure", "cloud", "hdfs", "kafka", "docker"}
ROOMS = (
    "tests/operators/bound",
    "tests/operators/declarations",
    "tests/operators/encoding",
    "tests/operators/groups",
    "tests/operators/session",
    "tests/operators/task",
    "tests/operators/types",
    "tests/state_store/arrays",
    "tests/state_store/attempts",
    "tests/state_store/database",
    "tests/state_store/format",
    "tests/state_store/sst",
    "tests/web/pace",
    "tests/test_shim_checks.py",
)
"""Rooms whose tests are quick: others start processes, or play long lives."""


def is_unit(item: pytest.Item) -> bool:
    """Whether a test is one of them."""
    if any(item.get_closest_marker(mark) for mark in MARKS):
        return False
    return SERVICES.isdisjoint(getattr(item, "fixturenames", ()))


if __name__ == "__main__":
    print(*ROOMS)
