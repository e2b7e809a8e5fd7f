"""Which tests a run has, in which order, and how its processes share them: by files, or by a costly fixture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.long_tests import name_of, read_names
from integration.sample import ALL
from integration.short import IN_TURN, PARTS, has
from integration.turns import PARTS as PARTS_IN_TURN
from integration.turns import find_turn, is_older, take
from integration.unit import is_unit

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("integration/crash/", "integration/yarn/")
"""Folders whose tests share what takes a minute: a run to compare with, a cluster."""

LONGEST = (
    "integration/crash/",
    "integration/ha/",
    "integration/kafka/",
    "integration/yarn/",
    "integration/savepoints/test_driver_kill.py",
    "integration/adoption/test_kills.py",
    "integration/test_",
)
"""What begins first of the tests with Spark: else a run waits for it at its end."""

LONG_TESTS = read_names()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Files in the order in which they were collected, each in one process."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - only a run that has it comes here

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid.split("::", maxsplit=1)[0])

    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take ``--unit``, which ``make unit`` gives."""
    parser.addoption("--unit", action="store_true", help="only quick tests that need no JVM and no service")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this Spark does not have, the cases of the whole matrix, and long tests that have another turn.

    Order the rest: tests without Spark first, then the longest.
    """
    left_out = {item for item in items if _is_left_out(item) or (config.option.unit and not is_unit(item))}
    in_turn = [item for item in items if item not in left_out and _is_in_turn(item)]
    in_turn.sort(key=lambda item: item.nodeid)
    left_out |= set(in_turn) - set(take(in_turn, find_turn()))
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: (item.nodeid.startswith("integration/"), not item.nodeid.startswith(LONGEST)))


def pytest_report_header() -> str:
    """Say which long tests there will be."""
    turn = find_turn()
    return (
        "long tests: all"
        if turn is None
        else f"long tests: part {turn % PARTS_IN_TURN + 1} of {PARTS_IN_TURN}; CKPT_TURN=all takes all"
    )


def _is_in_turn(item: pytest.Item) -> bool:
    if item.get_closest_marker("in_turn") or name_of(item.nodeid) in LONG_TESTS:
        return True
    return is_older() and item.nodeid.startswith(IN_TURN)


def _is_left_out(item: pytest.Item) -> bool:
    if item.get_closest_marker("matrix") and not ALL:
        return True
    return any(part in item.nodeid and not has(release) for part, release in PARTS.items())
