"""What a run leaves: a table on the screen, a JSON with every sample and setting, and a plot."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil

from integration.bench.bars import Ratio, Verdict, execution_ms
from integration.bench.measure import Measured
from integration.bench.snapshots import Figure
from integration.bench.variants import (
    ALL,
    MANY_TIMERS,
    OURS,
    SESSION_SETTINGS,
    SEVERAL_STATES,
    TRANSFORM_HERE,
    TWO_OPERATORS,
    VECTORISED,
    WITH_RULES,
    WITHOUT_STATE,
    Variant,
)
from integration.bench.worker import Sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOTES = (
    "Execution time of a warm batch: reading its two Parquet files, the operators, loading and committing the stores.",
    "A variant has a process of its own; while one runs a batch, the others wait.",
    "Ours syncs what it commits to disk (fsync); Spark's providers leave that to the system.",
    "Spark's RocksDB counts rows exactly, as is its default; so does ours.",
    "'no state' is the same plan with nothing kept: what Spark itself takes for such a batch.",
    "Ratios are ours over theirs, pair by pair of one round: median [quartiles].",
)


@dataclass(frozen=True)
class Run:
    """What was run and how, beside the samples."""

    rounds: int
    quick: bool
    results: Mapping[str, Measured]
    verdicts: Sequence[Verdict]
    engine: Sequence[Figure]


def table(run: Run) -> str:
    """All figures and verdicts as text."""
    lines = list(NOTES)
    for measured in run.results.values():
        lines += ["", f"{measured.workload.name}: {measured.workload.what}", *_rows(measured)]
    lines += ["", "bars" + (" (input is too small under --quick: they say nothing)" if run.quick else "")]
    lines += [
        f"  {'PASS' if verdict.passed else 'FAIL'}  {verdict.ratio!s:<24} at most {verdict.bar.limit:.3g}x  "
        f"{verdict.bar.what} ({verdict.against.variant})"
        for verdict in run.verdicts
    ]
    lines += [
        f"  {'PASS' if figure.passed else 'FAIL'}  {figure.ratio!s:<24} at most {figure.limit:.3g}x  {figure.what}\n"
        f"        {figure.detail}"
        for figure in run.engine
    ]
    return "\n".join(lines)


def _rows(measured: Measured) -> list[str]:
    header = f"  {'':<38}{'batch p50':>12}{'p99':>10}{'commit':>10}{'files':>8}{'memory':>10}  ours over it"
    rows = [header]
    for name in _in_order(measured.warm):
        samples = measured.warm[name]
        execution = [sample.execution_ms for sample in samples]
        commit = median(sample.commit_ms for sample in samples) / measured.workload.partitions
        rows.append(
            f"  {name:<38}{median(execution):>9.0f} ms{_p99(execution):>7.0f} ms{commit:>7.0f} ms"
            f"{max(sample.open_files for sample in samples):>8}"
            f"{max(sample.memory_bytes for sample in samples) / 2**20:>7.0f} MB  "
            + _against_ours(measured.warm, name, execution_ms)
        )
    for name in _in_order(measured.restored):
        samples = measured.restored[name]
        rows.append(
            f"  {name:<38}{median(sample.execution_ms for sample in samples):>9.0f} ms  first batch after the state "
            f"was dropped  {_against_ours(measured.restored, name, execution_ms)}"
        )
    return rows


_FIRST = (OURS, VECTORISED, SEVERAL_STATES, MANY_TIMERS, TWO_OPERATORS, TRANSFORM_HERE, WITH_RULES)
"""The variants with which others are compared, one in each workload."""


def _against_ours(samples: Mapping[str, Sequence[Sample]], name: str, figure: Callable[[Sample], float]) -> str:
    ours = next(variant.name for variant in _FIRST if variant.name in samples)
    if _named(name).ours and name != WITHOUT_STATE.name:
        return ""
    return str(Ratio.of([figure(each) for each in samples[ours]], [figure(each) for each in samples[name]]))


def _named(name: str) -> Variant:
    return next(variant for variant in ALL if variant.name == name)


def _in_order(samples: Mapping[str, Sequence[Sample]]) -> list[str]:
    return [variant.name for variant in ALL if variant.name in samples]


def _p99(values: Iterable[float]) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, round(0.99 * (len(ranked) - 1)))]


def write_json(run: Run, path: Path) -> None:
    """Every sample, with the machine, the versions and the settings."""
    content = {
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
            "load_average": os.getloadavg(),
        },
        "versions": {"python": sys.version.split()[0], **{each: version(each) for each in ("pyspark", "rocksdict")}},
        "settings": {
            "session": dict(SESSION_SETTINGS),
            **{each.name: dict(each.settings) for each in ALL},
        },
        "notes": NOTES,
        "rounds": run.rounds,
        "quick": run.quick,
        "workloads": {name: _as_json(measured) for name, measured in run.results.items()},
        "bars": [
            {
                "what": verdict.bar.what,
                "against": verdict.against.variant,
                "limit": verdict.bar.limit,
                "ratio": asdict(verdict.ratio),
                "passed": verdict.passed,
            }
            for verdict in run.verdicts
        ],
        "engine": [{**asdict(figure), "passed": figure.passed} for figure in run.engine],
    }
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _as_json(measured: Measured) -> dict[str, Any]:
    return {
        "what": measured.workload.what,
        "partitions": measured.workload.partitions,
        "keys": measured.workload.keys,
        "rows": measured.workload.rows,
        "warm": {name: [asdict(each) for each in samples] for name, samples in measured.warm.items()},
        "restored": {name: [asdict(each) for each in samples] for name, samples in measured.restored.items()},
    }


def draw(run: Run, path: Path) -> None:
    """One panel a workload: the warm batches of every variant, and their median."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    columns = min(3, len(run.results))
    rows = -(-len(run.results) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(5 * columns, 3.2 * rows), squeeze=False)
    for axis, measured in zip(axes.flat, run.results.values(), strict=False):
        _panel(axis, measured)
    for axis in list(axes.flat)[len(run.results) :]:
        axis.set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panel(axis: Axes, measured: Measured) -> None:
    names = _in_order(measured.warm)
    for row, name in enumerate(names):
        values = [sample.execution_ms for sample in measured.warm[name]]
        axis.barh(row, median(values), color="tab:orange" if _named(name).ours else "tab:gray")
        axis.plot(values, [row] * len(values), "k|", markersize=9)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_title(measured.workload.what, fontsize=9)
    axis.set_xlabel("ms a batch: median and every batch")
