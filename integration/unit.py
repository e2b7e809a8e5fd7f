"""Which tests ``make unit`` runs: quick ones that need no JVM and no service. All of them end in a minute."""

from __future__ import annotations

import pytest

MARKS = ("spark", "cluster", "kill", "slow", "in_turn", "matrix")
SERVICES = {"s3", "gcs", "azure", "cloud", "hdfs", "kafka", "docker"}
ROOMS = (
    "tests/checks/",
    "tests/offline/reading/",
    "tests/operators/",
    "tests/state_store/",
    "tests/web/pace/",
)
"""Rooms whose tests are quick: others start processes, or play long lives."""


def is_unit(item: pytest.Item) -> bool:
    """Whether a test is one of them."""
    if not item.nodeid.startswith(ROOMS) or any(item.get_closest_marker(mark) for mark in MARKS):
        return False
    return SERVICES.isdisjoint(getattr(item, "fixturenames", ()))
