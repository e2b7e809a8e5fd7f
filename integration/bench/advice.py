"""What following ``advise`` gains: batches of a query with as many partitions as it recommends, over those of before.

One query has a partition for all rows, another one 64 for a few. Each runs alone until ``advise`` can judge it, and is
then rescaled in one call. A second process, which was not, runs the same batches, in turn with it.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from integration.bench.bars import Ratio
from integration.bench.snapshots import Figure
from integration.bench.variants import OURS
from integration.bench.worker import Worker
from integration.bench.workloads import ADVISED_LARGE, ADVISED_SMALL, Workload

JUDGED_BATCHES = 6
WARM_BATCHES = 3
SKIPPED = 4
"""Batches for which a query waits after it has been rescaled, and files that are there for the next one."""


def measure(rounds: int, _factor: int, scratch: Path, logs: Path) -> list[Figure]:
    """The bar of each kind of advice, as far as it is given: with less data there would be none."""
    print(f"{Path(__file__).stem}: batches after what `advise` recommends, and without", flush=True)
    figures = []
    for verdict, workload in (("more", ADVISED_LARGE), ("fewer", ADVISED_SMALL)):
        folder = scratch / f"advice-{verdict}"
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            figure = _follow(verdict, workload, rounds, folder, logs, stack)
            if figure is not None:
                figures.append(figure)
                print(f"  {figure.detail}", flush=True)
    return figures


def _follow(verdict: str, workload: Workload, rounds: int, folder: Path, logs: Path, stack: ExitStack) -> Figure | None:
    inputs = workload.write(folder, 1 + JUDGED_BATCHES + WARM_BATCHES + rounds + SKIPPED)
    following, staying = (Worker(OURS, logs / f"advice-{name}.log") for name in ("following", "staying"))
    for worker, name in ((following, "following"), (staying, "staying")):
        stack.callback(worker.close)
        worker.start(workload, inputs, folder / name)
        for _ in range(1 + JUDGED_BATCHES):
            worker.step()
    advice = following.advise()
    if advice.verdict != verdict or advice.recommended is None:
        print(
            f"NOT RUN: {workload.what} in {workload.partitions} partitions, because advise says: {advice}", flush=True
        )
        return None
    following.rescale_running(advice.recommended)
    times: dict[Worker, list[float]] = {following: [], staying: []}
    for number in range(-WARM_BATCHES, rounds):
        for worker in (following, staying) if number % 2 else (staying, following):
            sample = worker.step()
            if number >= 0:
                times[worker].append(sample.execution_ms)
    before, after = (f"{median(times[worker]):.0f} ms" for worker in (staying, following))
    return Figure(
        f"batches after the advice to have {verdict} partitions, over those without",
        Ratio.of(times[following], times[staying]),
        1.0,
        f"{workload.what}: {before} with {workload.partitions} partitions, {after} with {advice.recommended}",
    )
