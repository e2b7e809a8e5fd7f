"""How long no query runs while one with five million keys is rescaled in one call, from 8 partitions to 32.

The query runs a batch when the call begins. Each round has a copy of the same checkpoint, which is not timed. The bar
is for what this package does: letting the query end, rescaling, starting. Spark's first batch comes on top; it
starts the query's threads, plans, and restores the state.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import astuple, replace
from pathlib import Path
from statistics import median

from integration.bench.bars import Ratio
from integration.bench.rescale import FEW, MANY, SMALL_BATCHES, Subject, fill, make_copy
from integration.bench.snapshots import Figure
from integration.bench.variants import RESCALED, RESCALED_KEYED
from integration.bench.worker import Down
from integration.bench.workloads import RESCALE, Workload

BAR_S = 6.0
ROUNDS = 5
BATCHES = 1 + SMALL_BATCHES + 1 + 4


def measure(rounds: int, factor: int, scratch: Path, logs: Path) -> list[Figure]:
    """The bar of each kind of operator, on ``factor`` times less data."""
    print(f"{Path(__file__).stem}: 5M keys from 8 partitions to 32, of a query that runs", flush=True)
    folder = scratch / "downtime"
    workload = replace(RESCALE, keys=RESCALE.keys // factor, partitions=FEW)
    inputs = workload.write(folder, BATCHES)
    figures = []
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for what, variant in (("aggregation", RESCALED), ("keyed operator", RESCALED_KEYED)):
            subject = fill(variant, workload, inputs, folder, logs, stack)
            downs = [_rescale(subject, workload, inputs) for _ in range(min(rounds, ROUNDS))]
            figures.append(_judge(what, downs))
            print(f"  {figures[-1].detail}", flush=True)
            subject.worker.close()
    return figures


def _rescale(subject: Subject, workload: Workload, inputs: list[Path]) -> Down:
    copy = make_copy(subject)
    subject.worker.start(workload, inputs, copy)
    down = subject.worker.rescale_running(MANY)
    subject.worker.unload()
    for path in copy.parent.glob(f"{copy.name}*"):
        shutil.rmtree(path)
    return down


def _judge(what: str, downs: list[Down]) -> Figure:
    own = [down.stop_s + down.rescale_s + down.start_s for down in downs]
    stop_s, rescale_s, start_s, first_batch_s = (median(part) for part in zip(*map(astuple, downs), strict=True))
    detail = (
        f"{what}: stop {stop_s:.2f} s, rescale {rescale_s:.2f} s, start {start_s:.2f} s, then the first batch "
        f"{first_batch_s:.2f} s"
    )
    ratio = Ratio.of(own, [BAR_S] * len(own))
    return Figure(f"{what}: down for a rescaling from {FEW} to {MANY} partitions, over {BAR_S:g} s", ratio, 1.0, detail)
