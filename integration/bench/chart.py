"""``python -m integration.bench.chart bench/out/bench.json docs/speed.svg``: the chart of the README."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from integration.bench.bars import ROCKSDB_MODES, Ratio
from integration.bench.variants import GROUPS, OURS, VECTORISED

BARS = (
    ("keyed", VECTORISED.name, (GROUPS.name,), "count and sum in Python, 500k rows\nover applyInPandasWithState"),
    ("join", OURS.name, ROCKSDB_MODES, "stream-stream join\nover Spark's RocksDB"),
    ("aggregation", OURS.name, ROCKSDB_MODES, "native aggregation, 500k rows\nover Spark's RocksDB"),
    ("small-batch", OURS.name, ROCKSDB_MODES, "native aggregation, 100 rows\nover Spark's RocksDB"),
)


def main() -> None:
    """Draw what the first argument has into the second."""
    source, target = map(Path, sys.argv[1:3])
    workloads = json.loads(source.read_text(encoding="utf-8"))["workloads"]
    draw([(label, find_ratio(workloads[name]["warm"], ours, theirs)) for name, ours, theirs, label in BARS], target)


def find_ratio(warm: dict[str, Any], ours: str, theirs: tuple[str, ...]) -> Ratio:
    """Ours over the fastest of theirs, of batches of the same rounds."""
    times = {name: [sample["execution_ms"] for sample in warm[name]] for name in (ours, *theirs)}
    return max((Ratio.of(times[ours], times[name]) for name in theirs), key=lambda ratio: ratio.middle)


def draw(bars: list[tuple[str, Ratio]], target: Path) -> None:
    """One bar for each ratio, with its quartiles; 1 is the other's time."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "chart"
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 2.8))
    for row, (_, ratio) in enumerate(bars):
        axis.barh(row, 1, color="#dddddd", height=0.6)
        axis.barh(row, ratio.middle, color="#d95f0e", height=0.6)
        axis.plot([ratio.low, ratio.high], [row, row], color="black", linewidth=1)
        shown = f"{ratio.middle:.2f}" if ratio.middle >= 0.1 else f"1/{1 / ratio.middle:.0f}"
        axis.text(max(ratio.middle, ratio.high) + 0.015, row, shown, va="center", fontsize=9)
    axis.set_yticks(range(len(bars)), [label for label, _ in bars], fontsize=8)
    axis.tick_params(axis="y", length=0)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.05)
    axis.set_xlabel("time of a warm batch over the other's: median and quartiles, two cores", fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
