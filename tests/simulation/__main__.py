"""Run worlds, each of which follows from its seed.

    python -m tests.simulation 7                       one seed, with its story
    python -m tests.simulation 0 500                   seeds 0 to 499
    python -m tests.simulation 0 --soak                from 0 on, until stopped
    python -m tests.simulation 0 500 --steps           the same, with threads that lose their turn anywhere; see steps
    python -m tests.simulation 0 500 --scene NAME      small scenes of such threads; all of them: all
    python -m tests.simulation 0 5000 --mutant NAME    until one finds the fault that is put back
    python -m tests.simulation 0 5000 --mutant all     the same for each fault, and how many seeds it took

Of a seed that goes wrong, the shortest plan is printed that was found to go wrong, too. In the end, and when Ctrl-C
stops a soak, it is printed how often worlds have met each event, fault and fail point, and what they never met.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial

from tests.simulation.coverage import describe, name_missing
from tests.simulation.mutants import MUTANTS, put_back, simulate_seed
from tests.simulation.running import Outcome
from tests.simulation.scenes import SCENES
from tests.simulation.shrinking import shrink
from tests.simulation.stage import play

REPORT_S = 60.0
HASH_SEED = "0"
NONE = ""


def main() -> int:
    """Run the seeds of the command line. Return 1 if one goes wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int, nargs="?", help="the seed after the last one")
    parser.add_argument("--soak", action="store_true", help="go on until stopped")
    parser.add_argument("--steps", action="store_true", help="let threads lose their turn anywhere")
    parser.add_argument("--scene", default=NONE, choices=[NONE, "all", *SCENES], metavar="NAME")
    parser.add_argument("--mutant", default=NONE, choices=[NONE, "all", *MUTANTS], metavar="NAME")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if not given.scene:
        logging.disable()
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:  # the order of a set belongs to the seed
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])  # noqa: S606
    if given.scene:
        played = range(given.first, given.first + 1 if given.end is None else given.end)
        with put_back(given.mutant):
            return _play_all(list(SCENES) if given.scene == "all" else [given.scene], played)
    if given.end is None and not given.soak:
        outcome = simulate_seed(given.first, given.mutant, in_steps=given.steps)
        print("\n".join(outcome.told))
        return _report(outcome, given.mutant) if outcome.violation else 0
    spawned = multiprocessing.get_context("spawn")  # RocksDB's threads are not in a forked process
    with ProcessPoolExecutor(given.processes, spawned) as pool:
        for mutant in MUTANTS if given.mutant == "all" else [given.mutant]:
            seeds = itertools.count(given.first) if given.soak else range(given.first, given.end)
            run = partial(simulate_seed, mutant=mutant, in_steps=given.steps)
            wrong = _run_all(pool, seeds, run, mutant, given.processes, shrinks=given.mutant != "all")
    return min(wrong, 1)


def _play_all(names: Iterable[str], seeds: Iterable[int]) -> int:
    wrong = 0
    for name in names:
        problems = ((seed, play(SCENES[name], seed)) for seed in seeds)
        seed, problem = next(((seed, problem) for seed, problem in problems if problem), (None, ""))
        if problem:
            wrong += 1
            print(f"{name}, seed {seed}: {problem}", flush=True)
    return min(wrong, 1)


def _run_all(
    pool: ProcessPoolExecutor,
    seeds: Iterable[int],
    run: Callable[[int], Outcome],
    mutant: str,
    processes: int,
    *,
    shrinks: bool,
) -> int:
    met: Counter[str] = Counter()
    began = reported = time.monotonic()
    count = wrong = 0
    with suppress(KeyboardInterrupt):
        for some in _parts(seeds, processes * 8):
            for outcome in pool.map(run, some):
                count += 1
                met += outcome.met
                if outcome.violation and not (mutant and wrong):
                    wrong += 1
                    if shrinks:
                        _report(outcome, mutant)
                    if mutant:
                        print(f"{mutant}: after {count} seeds: {outcome.violation.strip().splitlines()[-1]}")
            if mutant and wrong:
                return wrong
            if time.monotonic() - reported > REPORT_S:
                reported = time.monotonic()
                missing = "" if mutant else f"; never met: {', '.join(name_missing(met)) or 'nothing'}"
                rate = count / (reported - began)
                print(f"{count} seeds, {wrong} wrong, {rate:.1f} a second{missing}", flush=True)
    print(f"{mutant and mutant + ': '}{count} seeds in {time.monotonic() - began:.0f} s, {wrong} wrong", flush=True)
    if not mutant:
        print("\n".join(describe(met)))
    return wrong


def _parts(seeds: Iterable[int], size: int) -> Iterator[list[int]]:
    iterator = iter(seeds)
    while some := list(itertools.islice(iterator, size)):
        yield some


def _report(outcome: Outcome, mutant: str) -> int:
    print(f"seed {outcome.plan.seed}: {outcome.violation}", flush=True)
    with put_back(mutant):
        shortest = shrink(outcome)
    print("\n".join(shortest.told))
    print(f"shortest plan found: {shortest.plan!r}\n{shortest.violation}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
