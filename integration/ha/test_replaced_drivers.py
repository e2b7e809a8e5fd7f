"""A driver that is lost is started again elsewhere, and goes on; one that only seemed lost ends when it comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.crash import processes
from integration.crash.driver import FORMAT
from integration.crash.reference import order, read_output
from integration.ha.nodes import nodes
from integration.ha.stops import resume

QUERY = "windows"

pytestmark = [pytest.mark.spark, pytest.mark.kill]


@pytest.mark.parametrize("version", [1, pytest.param(2, marks=pytest.mark.matrix)])
def test_the_next_driver_goes_on_when_one_is_killed_or_only_seems_lost(version: int, tmp_path: Path) -> None:
    job = order(QUERY, tmp_path, conf={FORMAT: str(version)}, pace_s=1.5)
    output = tmp_path / QUERY / "output"

    def await_batch(number: int) -> None:
        processes.eventually(f"batch {number}", (output / f"{number}.json").exists, 0.1)

    with nodes(tmp_path / "nodes", job) as started:
        killed = next(started)
        await_batch(0)
        killed.kill()
        seems_lost = next(started)
        await_batch(2)
        still = seems_lost.pause()
        successor = next(started)
        await_batch(4)
        resume(still)
        assert seems_lost.await_end() == 1
        assert "is over: run 3 (run id " in seems_lost.log()
        assert successor.await_end() == 0, successor.log()[-3000:]
    with nodes(tmp_path / "calm-nodes", order(QUERY, tmp_path / "calm")) as started:
        assert next(started).await_end() == 0
    assert read_output(tmp_path / QUERY) == read_output(tmp_path / "calm" / QUERY)
