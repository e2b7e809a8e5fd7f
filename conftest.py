"""Which tests a run has, and how its processes share them: by files, and those of one costly fixture together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.sample import ALL

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("integration/crash/",)
"""Folders whose tests compare with one run, which takes a minute."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Files in the order in which they were collected, each in one process."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - only a run that has it comes here

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid.split("::", maxsplit=1)[0])

    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases of the whole matrix."""
    left_out = [] if ALL else [item for item in items if item.get_closest_marker("matrix")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("matrix")]
