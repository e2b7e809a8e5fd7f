"""Runs a workload on every variant in turn, batch by batch, so that all of them see the same weather."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from integration.bench.variants import (
    GROUPS,
    HDFS_BACKED,
    IN_MEMORY,
    MANY_TIMERS,
    MAP_IN_ARROW,
    NO_STATE,
    NO_TIMERS,
    ONE_OPERATOR,
    ONE_PICKLE,
    OURS,
    PER_KEY,
    ROCKSDB,
    ROCKSDB_CHANGELOG,
    SEVERAL_STATES,
    SEVERAL_STATES_PER_KEY,
    SMALL_CACHE,
    SMALL_CACHE_FEW_KEYS,
    TRANSFORM,
    TRANSFORM_FRAMES,
    TRANSFORM_FRAMES_HERE,
    TRANSFORM_HERE,
    TWO_OPERATORS,
    UNCHANGED,
    UNCOMPRESSED_FEW_KEYS,
    VECTORISED,
    VECTORISED_BY_DEFAULT,
    VECTORISED_FEW_KEYS,
    VECTORISED_UNCOMPRESSED,
    WITH_RULES,
    WITHOUT_RULES,
    WITHOUT_STATE,
    Variant,
)
from integration.bench.worker import Sample, Worker
from integration.bench.workloads import FILL_BATCHES, Workload

LOOK_AHEAD = 2
RESTARTS = 3
BASE = (OURS, IN_MEMORY, ROCKSDB, ROCKSDB_CHANGELOG, HDFS_BACKED)
INSTEAD = {
    "keyed": (
        VECTORISED,
        VECTORISED_BY_DEFAULT,
        PER_KEY,
        UNCHANGED,
        GROUPS,
        TRANSFORM,
    ),
    "keyed-plan": (MAP_IN_ARROW, WITHOUT_STATE, VECTORISED, PER_KEY, ROCKSDB, ROCKSDB_CHANGELOG),
    "keyed-partitions": (VECTORISED, GROUPS),
    "keyed-small": (VECTORISED, VECTORISED_BY_DEFAULT, PER_KEY, WITHOUT_STATE),
    "stateful": (TRANSFORM_HERE, TRANSFORM_FRAMES_HERE, TRANSFORM, TRANSFORM_FRAMES),
    "stateful-large": (TRANSFORM_HERE, TRANSFORM_FRAMES_HERE, TRANSFORM, TRANSFORM_FRAMES),
    "keyed-large": (VECTORISED, VECTORISED_FEW_KEYS, VECTORISED_UNCOMPRESSED, UNCOMPRESSED_FEW_KEYS),
    "keyed-large-distinct": (VECTORISED, VECTORISED_FEW_KEYS, VECTORISED_UNCOMPRESSED, UNCOMPRESSED_FEW_KEYS),
    "keyed-states": (SEVERAL_STATES, SEVERAL_STATES_PER_KEY, ONE_PICKLE),
    "keyed-chain": (ONE_OPERATOR, TWO_OPERATORS),
    "broadcast": (WITHOUT_RULES, WITH_RULES),
    "timers": (MANY_TIMERS, NO_TIMERS),
}
BESIDES = {
    "large-state": (SMALL_CACHE, SMALL_CACHE_FEW_KEYS),
    "aggregation": (NO_STATE,),
    "small-batch": (NO_STATE,),
}


@dataclass
class Measured:
    """All samples of one workload: ``warm[variant][round]`` and ``restored[variant][round]``."""

    workload: Workload
    warm: dict[str, list[Sample]] = field(default_factory=dict)
    restored: dict[str, list[Sample]] = field(default_factory=dict)
    processor_ms: dict[str, list[float]] = field(default_factory=dict)
    """Of each warm batch: the processor time of all processes of the variant."""


class Bench:
    """Keeps one process a variant for all workloads."""

    def __init__(self, scratch: Path, logs: Path) -> None:
        """Use ``scratch`` for input and checkpoints; the processes write to ``logs``."""
        self._scratch = scratch
        self._logs = logs
        self._workers: dict[str, Worker] = {}

    def measure(self, workload: Workload, rounds: int, chosen: Sequence[Variant] = ()) -> Measured:
        """Fill and warm every variant, then ``rounds`` batches each (or a multiple), in turn; the order rotates.

        The variants are those of the workload, or those that are ``chosen``.
        """
        rounds *= workload.rounds_factor
        variants = tuple(chosen) or variants_of(workload)
        restarts = RESTARTS if workload.restarts else 0
        folder = self._scratch / workload.name
        slow_rounds = max(variant.turns or 0 for variant in variants)
        batches = FILL_BATCHES + workload.warm + rounds + slow_rounds + restarts + LOOK_AHEAD
        inputs = {
            part: replace(workload, keys=max(1, workload.keys // part)).write(folder / str(part), batches)
            for part in {variant.part_of_keys for variant in variants}
        }
        for variant in variants:
            checkpoint = folder / "checkpoint" / variant.name.replace(", ", "-")
            self._worker(variant).start(workload, inputs[variant.part_of_keys], checkpoint)
        measured = Measured(workload)
        for number in range(-FILL_BATCHES - workload.warm, rounds):
            is_filling = number < -workload.warm
            slow = [each for each in variants if each.turns is not None and (is_filling or 0 <= number < each.turns)]
            quick = [each for each in _rotated(variants, number) if each.turns is None]
            for variant in slow:
                self._step(variant, measured, counts=number >= 0)
            if slow and not is_filling:  # Spark has ended the others' idle Python workers meanwhile
                for variant in quick:
                    self._step(variant, measured, counts=False)
            for variant in quick:
                self._step(variant, measured, counts=number >= 0)
        for number in range(restarts):
            for variant in _rotated(variants, number):
                self._worker(variant).restart()
                measured.restored.setdefault(variant.name, []).append(self._worker(variant).step())
        for variant in variants:
            self._worker(variant).stop()
        return measured

    def close(self) -> None:
        """End every process."""
        for worker in self._workers.values():
            worker.close()

    def _step(self, variant: Variant, measured: Measured, *, counts: bool) -> None:
        worker = self._worker(variant)
        before = worker.processor_ms() if counts else 0.0
        sample = worker.step()
        if counts:
            measured.warm.setdefault(variant.name, []).append(sample)
            measured.processor_ms.setdefault(variant.name, []).append(worker.processor_ms() - before)

    def _worker(self, variant: Variant) -> Worker:
        if variant.name not in self._workers:
            self._workers[variant.name] = Worker(variant, self._logs / f"{variant.name.replace(', ', '-')}.log")
        return self._workers[variant.name]


def variants_of(workload: Workload) -> tuple[Variant, ...]:
    """What a workload is measured on."""
    return (*INSTEAD.get(workload.name, BASE), *BESIDES.get(workload.name, ()))


def _rotated(variants: tuple[Variant, ...], by: int) -> tuple[Variant, ...]:
    cut = by % len(variants)
    return variants[cut:] + variants[:cut]
