"""A driver that is lost is started again elsewhere, and goes on; one that only seemed lost ends when it comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.crash import processes
from integration.crash.driver import FORMAT
from integration.crash.reference import order, read_output
from integration.ha.nodes import nodes
from integration.ha.stops import resume
from integration.ha.supervision import supervised

QUERY = "windows"

pytestmark = [pytest.mark.spark, pytest.mark.kill]


@pytest.mark.in_turn
@pytest.mark.parametrize("version", [1, pytest.param(2, marks=pytest.mark.matrix)])
def test_the_next_driver_goes_on_when_one_is_killed_or_only_seems_lost(version: int, tmp_path: Path) -> None:
    conf = {FORMAT: str(version)}
    runs = order(QUERY, tmp_path, conf=conf, pace_s=1.5), order(QUERY, tmp_path / "calm", conf=conf)
    output = tmp_path / QUERY / "output"

    def await_batch(number: int) -> None:
        processes.eventually(f"batch {number}", (output / f"{number}.json").exists, 0.1)

    with nodes(tmp_path / "nodes", *runs) as started:
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
    assert read_output(tmp_path / QUERY) == read_output(tmp_path / "calm" / QUERY)


@pytest.mark.cluster
@pytest.mark.matrix
def test_a_supervised_driver_goes_on_elsewhere_when_its_worker_stands_still(tmp_path: Path) -> None:
    runs = order(QUERY, tmp_path, pace_s=2), order(QUERY, tmp_path / "calm")
    output = tmp_path / QUERY / "output"
    with supervised(tmp_path, runs) as drivers:
        first = drivers.await_next()
        processes.eventually("batch 1", (output / "1.json").exists, 0.1)
        worker, *its_drivers = drivers.pause_worker(first)
        second = drivers.await_next()
        assert drivers.worker_of(second) != drivers.worker_of(first)
        processes.eventually("batch 3", (output / "3.json").exists, 0.1)
        resume(its_drivers)
        drivers.await_end(first)
        resume([worker])
        drivers.await_end_of_all()
        assert "is over: run 2 (run id " in drivers.log(first)
    assert read_output(tmp_path / QUERY) == read_output(tmp_path / "calm" / QUERY)
