"""The command: choose workloads, measure, judge, report."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from integration.bench import advice, downtime, offline, rescale, serve
from integration.bench import snapshots as engine
from integration.bench.against import compare
from integration.bench.bars import judge
from integration.bench.live import latency
from integration.bench.measure import Bench, Measured
from integration.bench.report import Run, draw, table, write_json
from integration.bench.workloads import named

OUT = Path("bench") / "out"
QUICK_FACTOR = 20
QUICK_ROUNDS = 3
APART = {
    "engine": engine.measure,
    "rescale": rescale.measure,
    "offline": offline.measure,
    "serve": serve.measure,
    "downtime": downtime.measure,
    "advice": advice.measure,
    "live": latency.measure,
}
"""What is measured by programs of its own, and judged there."""


def main() -> None:
    """Run the bench and leave its results below ``bench/out``."""
    arguments = _arguments()
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else 9)
    OUT.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="pyspark-ckpt-bench-"))
    bench = Bench(scratch, OUT / "logs")
    results: dict[str, Measured] = {}
    run = Run(rounds, arguments.quick, results, [], [])
    names = [name for name in arguments.only if name not in APART]
    factor = QUICK_FACTOR if arguments.quick else 1
    try:
        if arguments.against:
            workloads = [each.smaller(QUICK_FACTOR) if arguments.quick else each for each in named(names)]
            for line in compare(bench, workloads, rounds, arguments.against.resolve(strict=True)):
                print(line, flush=True)
            return
        for name, measure in APART.items():
            if name in arguments.only or not arguments.only:
                run = replace(run, engine=[*run.engine, *measure(rounds, factor, scratch, OUT / "logs")])
        for workload in named(names) if names or not arguments.only else ():
            print(f"{workload.name}: {workload.what}", flush=True)
            chosen = workload.smaller(QUICK_FACTOR) if arguments.quick else workload
            results[workload.name] = bench.measure(chosen, rounds)
            run = replace(run, verdicts=judge(results))
            write_json(run, OUT / "bench.json")
    finally:
        bench.close()
        shutil.rmtree(scratch, ignore_errors=True)
    write_json(run, OUT / "bench.json")
    if results:
        draw(run, OUT / "bench.png")
    print(f"\n{table(run)}\n\n{OUT / 'bench.json'}" + (f", {OUT / 'bench.png'}" if results else ""))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything: to see that it runs")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        help="only these workloads; engine: snapshots and restores, rescale: savepoints and rescaling, offline: state "
        "that is written and compared, serve: the web page, downtime: queries that are rescaled while they run, "
        "advice: queries that follow what `advise` says, live: latency in real-time mode, which needs Kafka",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="compare ours with ours in another checkout of this project, in which `make jar` was run",
    )
    parser.add_argument("--rounds", type=int, help="measured batches of every variant")
    return parser.parse_args()


if __name__ == "__main__":
    main()
