"""Everything that may go wrong, for as long as you like: ``python -m integration.soak --minutes 60 --seed 1``.

Each round is decided by its seed: where state is kept (with the checkpoint, in a folder, in S3 behind a faulty network,
in HDFS), the checkpoint format, the cluster, options, and which processes are killed and when, while all queries of the
crash tests run. At the end of a round output, state and every stored object must be right. Then the random life of a
keyed program with the round's seed (``integration.life``) must be what dicts say. The first wrong round
ends the run with exit code 1; its seed, its choices and its folder are printed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from integration.crash.chaos import Chaos, run_through
from integration.crash.driver import FORMAT, LOCAL, OPTIONS, Driver
from integration.crash.reference import Reference, made, order
from integration.crash.workload import QUERIES
from pyspark_ckpt.cli.main import main as command
from tests.faults.faulty_s3 import KINDS, Faults, proxy
from tests.services import hdfs_service, s3_server

FAULTY_SHARE = 0.05
CLUSTER_SHARE = 0.25


@dataclass
class Round:
    """What a seed has decided."""

    seed: int
    place: str
    on_cluster: bool
    conf: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, seed: int, places: Mapping[str, str]) -> Round:
        """Choose; ``places`` has where to keep state by the kind of place."""
        draw = Random(seed)
        place = draw.choice(sorted(places))
        options = {
            "snapshotMode": draw.choice(["incremental", "full"]),
            "compression": draw.choice(["lz4", "none", "zstd"]),
            "snapshotEveryVersions": str(draw.randint(1, 3)),
            "workerMemory": draw.choice(["1m", "128m"]),
            "localCheckpoints": str(draw.randint(1, 3)),
            "backend": draw.choice(["rocksdb", "memory"]),
        }
        if place != "checkpoint":
            options["remote"] = f"{places[place]}/{seed}"
        conf = {FORMAT: str(draw.choice([1, 2])), **{f"{OPTIONS}{key}": value for key, value in options.items()}}
        return cls(seed, place, draw.random() < CLUSTER_SHARE, conf)

    def __str__(self) -> str:
        choices = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in self.conf.items())
        return f"seed {self.seed}: state in {self.place}, {'local-cluster' if self.on_cluster else 'local'}, {choices}"


def main() -> int:
    """Run rounds until the time is over; returns the exit code."""
    arguments = _arguments()
    until = time.monotonic() + arguments.minutes * 60
    scratch = Path(tempfile.mkdtemp(prefix="pyspark-ckpt-soak-"))
    print(f"rounds from seed {arguments.seed} on, for {arguments.minutes} minutes, in {scratch}", flush=True)
    with ExitStack() as stack:
        faults = Faults()
        places, reach = _places(stack, scratch, faults)
        with Driver(scratch / "reference", LOCAL) as driver:
            reference = made(driver, scratch / "reference")
        seed = arguments.seed
        while seed == arguments.seed or time.monotonic() < until:
            one = Round.of(seed, places)
            print(one, flush=True)
            draw = Random(seed)
            faults.next = lambda _method, _number: draw.choice(KINDS) if draw.random() < FAULTY_SHARE else None  # noqa: B023
            try:
                _run(one, reference, reach, faults, scratch / str(seed))
                _live(seed)
            except Exception:  # noqa: BLE001 - whatever is wrong: say so and how to see it again
                traceback.print_exc()
                print(f"FAILED: {one}\nagain: --seed {seed}; left for you: {scratch / str(seed)}", flush=True)
                return 1
            shutil.rmtree(scratch / str(seed))
            seed += 1
    shutil.rmtree(scratch)
    print(f"{seed - arguments.seed} rounds, all right")
    return 0


def _run(one: Round, reference: Reference, reach: Mapping[str, str], faults: Faults, folder: Path) -> None:
    conf = {**one.conf, **{f"{OPTIONS}{key}": value for key, value in reach.items()}}

    def check(driver: Driver) -> None:
        faults.next = lambda _method, _number: None
        for name in QUERIES:
            reference.check(driver, name, folder, conf)

    chaos = Chaos(one.seed, on_cluster=one.on_cluster, other_faults=lambda: sum(faults.seen[kind] for kind in KINDS))
    orders = [order(name, folder, conf=conf) for name in QUERIES]
    run_through(chaos, orders, folder, on_cluster=one.on_cluster, check=check)
    for name in QUERIES:
        options = [part for key, value in reach.items() for part in ("-o", f"{key}={value}")]
        if command(["checkpoint", "verify", str(folder / name / "checkpoint"), *options]):
            raise AssertionError(f"{name}: a stored object is wrong")
    print(f"  {', '.join(chaos.done)}; network: {dict(faults.seen)}", flush=True)


def _live(seed: int) -> None:
    """Play one random life, in a process of its own; it prints how to play it again."""
    command_line = [sys.executable, "-m", "integration.life", "--seed", str(seed), "--seeds", "1"]
    if subprocess.run(command_line, check=False).returncode:
        raise AssertionError(f"the random life of a keyed program differs: {' '.join(command_line[1:])}")


def _places(stack: ExitStack, scratch: Path, faults: Faults) -> tuple[dict[str, str], dict[str, str]]:
    """Where state may be kept, and the options to reach it. Places that are missing are reported."""
    places, reach = {"checkpoint": "", "folder": str(scratch / "elsewhere")}, dict[str, str]()
    try:
        service = stack.enter_context(s3_server.running(scratch / "s3"))
        endpoint = stack.enter_context(proxy(service.endpoint, faults))
        places["s3"], reach = service.new_folder(), {**service.options, "s3Endpoint": endpoint}
    except pytest.skip.Exception as problem:
        print(f"no S3: {problem}")
    try:
        places["hdfs"] = stack.enter_context(hdfs_service.running(scratch / "hdfs")).new_folder()
    except pytest.skip.Exception as problem:
        print(f"no HDFS: {problem}")
    return places, reach


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="no round begins later; default: 30")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; default: 1")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
