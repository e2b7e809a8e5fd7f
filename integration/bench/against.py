"""This checkout against another one of this project, that of the commit before for instance, batch by batch in turn.

A third process runs this checkout once more: its ratio says what the machine alone makes of no change at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from integration.bench.bars import Ratio, execution_ms
from integration.bench.measure import Bench, variants_of
from integration.bench.variants import VECTORISED_BY_DEFAULT, WITHOUT_STATE, Variant
from integration.bench.workloads import Workload

NOT_COMPARED = (VECTORISED_BY_DEFAULT, WITHOUT_STATE)
"""Variants that are there to be compared with others."""


def compare(bench: Bench, workloads: Iterable[Workload], rounds: int, checkout: Path) -> Iterator[str]:
    """A line for each of our variants of each workload, as soon as it is known.

    It has our time over that of ``checkout``, and over our own in another process; then the same of a whole turn, to
    which planning and the entries of Spark's logs belong, and of processor time.
    """
    for workload in workloads:
        ours = [each for each in variants_of(workload) if _is_compared(each)]
        measured = bench.measure(
            workload, rounds, [one for each in ours for one in (each, _in(checkout, each), _again(each))]
        )
        for variant in ours:
            names = (variant.name, _in(checkout, variant).name, _again(variant).name)
            times = [[execution_ms(sample) for sample in measured.warm[name]] for name in names]
            turns = [[sample.turn_ms for sample in measured.warm[name]] for name in names]
            for what, (mine, theirs, again) in (
                (variant.name, times),
                ("  with planning and logs", turns),
                ("  processor time", [measured.processor_ms[name] for name in names]),
            ):
                yield (
                    f"{workload.name:<22}{what:<34}{median(mine):>7.0f} ms{median(theirs):>7.0f} ms  "
                    f"{Ratio.of(mine, theirs)}; no change: {Ratio.of(mine, again)}"
                )


def _is_compared(variant: Variant) -> bool:
    return variant.ours and variant.turns is None and variant.part_of_keys == 1 and variant not in NOT_COMPARED


def _again(variant: Variant) -> Variant:
    return replace(variant, name=f"{variant.name}, again")


def _in(checkout: Path, variant: Variant) -> Variant:
    return replace(variant, name=f"{variant.name}, other", checkout=checkout)
