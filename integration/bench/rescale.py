"""Savepoints and rescaling: five million keys from 8 partitions to 32 and back, and the batches that follow.

Spark repartitions its state in place, by a batch of its own; ours makes another checkpoint. Each gets a copy of its
checkpoint for every round, which is not timed: so the files of both were read and written just before, and not by one
alone. Each has a process with a session, and they take turns; what one has left to be written to the disk is written
before the next one's turn. State is made by one batch that has every key, and two small ones.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from integration.bench.bars import Ratio
from integration.bench.snapshots import Figure
from integration.bench.variants import REPARTITIONED, RESCALED, RESCALED_KEYED, Variant
from integration.bench.worker import Moved, Worker
from integration.bench.workloads import RESCALE, Workload

FEW, MANY = 8, 32
ROUNDS = 3
"""Spark takes over a minute for each."""
SMALL_BATCHES = 2
WARM_BATCHES = 3
BATCHES = 1 + SMALL_BATCHES + 1 + 1 + WARM_BATCHES + 2
_PATIENCE_S = 120


@dataclass
class Subject:
    """A variant: its process, its checkpoint of ``FEW`` partitions, and what was measured."""

    worker: Worker
    folder: Path
    built_ms: float = 0.0
    """How long the first batch took, which has every key."""
    splits: list[Moved] = field(default_factory=list)
    merges: list[Moved] = field(default_factory=list)
    adopted: list[Moved] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    warm_ms: list[float] = field(default_factory=list)

    @property
    def few(self) -> Path:
        """The checkpoint that every round begins with."""
        return self.folder / "few"

    def both(self) -> str:
        """Seconds of splits and merges, for people."""
        return f"{_seconds(self.splits):.1f} s, back {_seconds(self.merges):.1f} s"


def measure(rounds: int, factor: int, scratch: Path, logs: Path) -> list[Figure]:
    """All bars of savepoints and rescaling, on ``factor`` times less data."""
    print("rescale: savepoints, and 5M keys from 8 partitions to 32 and back", flush=True)
    folder = scratch / "rescale"
    workload = replace(RESCALE, keys=RESCALE.keys // factor, partitions=FEW)
    inputs = workload.write(folder, BATCHES)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        ours, keyed, spark = (
            fill(variant, workload, inputs, folder, logs, stack)
            for variant in (RESCALED, RESCALED_KEYED, REPARTITIONED)
        )
        savepoint = _savepoint(ours, rounds)
        for number in range(min(rounds, ROUNDS)):
            for subject in (ours, keyed):
                _rescale(subject, workload, inputs)
            _adopt(spark, ours)
            _repartition(spark)
            print(f"  round {number + 1}: ours {ours.both()}; keyed {keyed.both()}; Spark {spark.both()}", flush=True)
            print(f"           moved in: {_seconds(spark.adopted):.1f} s", flush=True)
    return [*_ratios(ours, keyed, spark), savepoint, _first_batch("aggregation", ours), _first_batch("keyed", keyed)]


def fill(
    variant: Variant, workload: Workload, inputs: list[Path], folder: Path, logs: Path, stack: ExitStack
) -> Subject:
    """A query of the variant with all its state, stopped; of ours, there are snapshots of it."""
    name = variant.name.replace(", ", "-")
    worker = Worker(variant, logs / f"{name}.log")
    stack.callback(worker.close)
    subject = Subject(worker, folder / name)
    worker.start(workload, inputs, subject.few)
    subject.built_ms = worker.step().execution_ms
    for _ in range(SMALL_BATCHES):
        worker.step()
    if variant.ours:  # of a batch that another one has followed
        _await_snapshots(subject.few, workload.partitions)
    worker.unload()
    return subject


def _await_snapshots(checkpoint: Path, stores: int) -> None:
    until = time.monotonic() + _PATIENCE_S
    while len({path.parent for path in checkpoint.glob("state/0/*/*.snapshot")}) < stores:
        if time.monotonic() > until:
            raise TimeoutError(f"No snapshots of all stores in {checkpoint} within {_PATIENCE_S} s.")
        time.sleep(0.1)


def _rescale(subject: Subject, workload: Workload, inputs: list[Path]) -> None:
    """Rescale to many partitions and from there back; then continue the query with many."""
    copy, many, back = make_copy(subject), subject.folder / "many", subject.folder / "back"
    subject.splits.append(subject.worker.rescale(copy, many, MANY))
    subject.merges.append(subject.worker.rescale(many, back, FEW))
    shutil.rmtree(copy)
    shutil.rmtree(back)
    subject.worker.start(replace(workload, partitions=MANY), inputs, many)
    samples = [subject.worker.step().execution_ms for _ in range(2 + WARM_BATCHES)]
    subject.worker.unload()
    subject.first_ms.append(samples[0])
    subject.warm_ms.append(median(samples[2:]))
    shutil.rmtree(many)


def make_copy(subject: Subject) -> Path:
    """A copy of the checkpoint that every round begins with, all of it written to the disk."""
    copy = subject.folder / "copy"
    shutil.copytree(subject.few, copy)
    os.sync()
    return copy


def _adopt(spark: Subject, ours: Subject) -> None:
    """Move Spark's checkpoint to our store, for many partitions."""
    target = ours.folder / "adopted"
    spark.adopted.append(ours.worker.adopt(spark.few, target, MANY))
    shutil.rmtree(target)


def _repartition(spark: Subject) -> None:
    copy = make_copy(spark)
    spark.splits.append(spark.worker.repartition(copy, MANY))
    spark.merges.append(spark.worker.repartition(copy, FEW))
    shutil.rmtree(copy)


def _savepoint(subject: Subject, rounds: int) -> Figure:
    """A native savepoint over ``cp -r`` of its objects, and a sync of every copy, in turn."""
    target, copy = subject.folder / "savepoint", subject.folder / "copy"
    ours, copies, size = [], [], 0
    for _ in range(rounds + 1):
        ours.append(subject.worker.savepoint(subject.few, target))
        started = time.perf_counter()
        subprocess.run(["/bin/cp", "-r", target / "state", copy], check=True)
        subprocess.run(["/usr/bin/find", copy, "-type", "f", "-exec", "sync", "{}", "+"], check=True)
        copies.append(time.perf_counter() - started)
        size = sum(path.stat().st_size for path in copy.rglob("*") if path.is_file())
        shutil.rmtree(target)
        shutil.rmtree(copy)
    detail = f"{size / 1e6:.0f} MB: ours {median(ours[1:]):.2f} s, cp -r and sync {median(copies[1:]):.2f} s"
    ratio = Ratio.of(ours[1:], copies[1:])
    return Figure("a savepoint over cp -r and sync of its objects", ratio, 1.5, detail)


def _ratios(ours: Subject, keyed: Subject, spark: Subject) -> list[Figure]:
    """Ours over Spark's, and the share of its bytes that a split of a keyed operator has written anew."""
    figures = [
        Figure(
            f"{what}: {direction}, over Spark's repartition of its aggregation",
            Ratio.of([each.seconds for each in mine], [each.seconds for each in theirs]),
            limit,
            f"5M keys: ours {_seconds(mine):.1f} s, Spark {_seconds(theirs):.1f} s",
        )
        for what, direction, mine, theirs, limit in (
            ("aggregation", "8 to 32 partitions", ours.splits, spark.splits, 1 / 5),
            ("aggregation", "32 to 8 partitions", ours.merges, spark.merges, 1 / 5),
            ("keyed operator", "8 to 32 partitions", keyed.splits, spark.splits, 1 / 10),
            ("keyed operator", "32 to 8 partitions", keyed.merges, spark.merges, 1 / 5),
        )
    ]
    written = [each.rewritten_bytes for each in keyed.splits]
    whole = [each.rewritten_bytes + each.copied_bytes for each in keyed.splits]
    detail = f"{median(written) / 1e6:.1f} MB of {median(whole) / 1e6:.0f} MB"
    figures.append(
        Figure(
            "move in: Spark's aggregation, 8 to 32 partitions, over Spark's repartition of it",
            Ratio.of([each.seconds for each in spark.adopted], [each.seconds for each in spark.splits]),
            1 / 3,
            f"5M keys: ours {_seconds(spark.adopted):.1f} s, Spark {_seconds(spark.splits):.1f} s",
        )
    )
    figures.append(
        Figure("keyed operator: 8 to 32 partitions, bytes written anew", Ratio.of(written, whole), 0.1, detail)
    )
    return figures


def _first_batch(what: str, subject: Subject) -> Figure:
    detail = f"first {median(subject.first_ms):.0f} ms, warm {median(subject.warm_ms):.0f} ms, {MANY} partitions"
    ratio = Ratio.of(subject.first_ms, subject.warm_ms)
    return Figure(f"{what}: the first batch after a restore over a warm one", ratio, 2.0, detail)


def _seconds(moves: Sequence[Moved]) -> float:
    return median(each.seconds for each in moves)
