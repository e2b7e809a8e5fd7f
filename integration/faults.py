"""Many seeded fault schedules against the state server: ``python -m integration.faults --schedules 10000``.

Each seed is one life of a query: faults of the network, the local disk and the process, and a dict that knows what
every version must read. A seed that goes wrong is printed with its schedule and with what differed, and ends the
command with status 1.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.stateful.schedules import Wrong, live

PROGRESS_S = 60


def main() -> int:
    """Run the schedules; 0 if none was wrong."""
    arguments = _arguments()
    seeds = range(arguments.seed, arguments.seed + arguments.schedules)
    started, told, wrong = time.monotonic(), time.monotonic(), []
    for count, found in enumerate(_lives(seeds, arguments.processes), 1):
        if found is not None:
            wrong.append(found.seed)
            print(f"{found}\n", flush=True)
        if time.monotonic() - told > PROGRESS_S or count == len(seeds):
            told = time.monotonic()
            print(_progress(count, len(seeds), told - started, wrong), flush=True)
    return 1 if wrong else 0


def _lives(seeds: range, processes: int) -> Iterator[Wrong | None]:
    """What came of each seed, as it ends. Raises BrokenProcessPool if a process dies: that is a defect as well."""
    context = multiprocessing.get_context("spawn")  # RocksDB's threads do not live through a fork
    with ProcessPoolExecutor(processes, context, initializer=logging.disable) as pool:
        for done in as_completed([pool.submit(live, seed) for seed in seeds]):
            yield done.result()


def _progress(count: int, of: int, seconds: float, wrong: list[int]) -> str:
    return f"{count} of {of} schedules in {seconds:.0f} s, {count / seconds:.1f} a second, wrong: {wrong or 'none'}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.faults", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="how many at once (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
