"""The latency of keyed operators and of Spark's own, side by side in one session."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from integration.bench.bars import Ratio
from integration.bench.live.load import latencies_ms, produce, watching
from integration.bench.snapshots import Figure
from integration.crash.driver import Driver
from integration.kafka.service import KafkaService, running, session_jars

PARTITIONS = 2
SLOTS = 8
BATCH_S = 40
"""A load is within one batch. Its end would add the commit, and the start of the next batch."""
WARM_S, LOAD_S = 5.0, 20.0
FIRST = 10
MOST_ROUNDS = 3
COUNTS = Path(__file__).with_name("Counts.scala")


@dataclass(frozen=True)
class Case:
    """An operator under a load. ``ours``: its state is in this project's store."""

    operator: str
    rate: int
    ours: bool = True

    def __str__(self) -> str:
        """Return the name in what is printed."""
        return f"{self.operator} on {'ours' if self.ours else 'RocksDB'}, {self.rate:,} rows/s"


@dataclass(frozen=True)
class Latency:
    """Of one case in one round, in ms. ``commit_ms``: the median of its batches."""

    p50: float
    p99: float
    commit_ms: float


def measure(rounds: int, factor: int, scratch: Path, logs: Path) -> list[Figure]:
    """The bars of latency, from loads that are ``factor`` times as short."""
    cases = [
        *(Case("transformWithState", 1000, ours=ours) for ours in (False, True)),
        *(Case("aggregation", 1000, ours=ours) for ours in (False, True)),
        *(Case("dropDuplicates", 1000, ours=ours) for ours in (False, True)),
        *(Case("per key", rate) for rate in (1000, 5000, 20_000)),
        *(Case("vectorised", rate) for rate in (1000, 40_000)),
    ]
    found: dict[Case, list[Latency]] = defaultdict(list)
    print(f"live: latency in real-time mode, with {PARTITIONS} partitions", flush=True)
    with running(scratch / "live-kafka", flags=()) as kafka, _driver(scratch, logs) as driver:
        for number in range(min(rounds, MOST_ROUNDS)):
            for case in cases:
                each = run(driver, kafka, case, scratch / f"live-{number}-{cases.index(case)}", LOAD_S / factor)
                found[case].append(each)
                print(
                    f"  {case}: p50 {each.p50:.1f} ms, p99 {each.p99:.1f} ms, commit {each.commit_ms:.0f} ms",
                    flush=True,
                )
    return list(_judge(found))


def run(driver: Driver, kafka: KafkaService, case: Case, folder: Path, load_s: float) -> Latency:
    """Start the query of a case, warm it, and measure it under its load."""
    with kafka.topic(PARTITIONS) as source, kafka.topic(PARTITIONS) as sink:
        names = {"servers": kafka.servers, "source": source.name, "sink": sink.name}
        with watching(kafka.servers, sink.name) as arrivals:
            driver.order(
                "start", operator=case.operator, ours=case.ours, kafka=names, checkpoint=str(folder), batch_s=BATCH_S
            )
            first = produce(kafka.servers, source.name, FIRST, 1, 0)
            latencies_ms(arrivals, first)  # the query runs
            first += (warm := produce(kafka.servers, source.name, case.rate, WARM_S, first))
            latencies_ms(arrivals, warm)
            latency_ms = latencies_ms(arrivals, produce(kafka.servers, source.name, case.rate, load_s, first))
        commits_ms = driver.order("stop")
    p50, p99 = np.quantile(latency_ms, [0.5, 0.99]).tolist()
    return Latency(p50, p99, median(commits_ms))


def _judge(found: dict[Case, list[Latency]]) -> Iterator[Figure]:
    def figure(what: str, case: Case, name: str, limit: float, over: Case | float) -> Figure:
        ours = [getattr(each, name) for each in found[case]]
        theirs = [getattr(each, name) for each in found[over]] if isinstance(over, Case) else [over] * len(ours)
        return Figure(f"{what}, {case}, over {over}", Ratio.of(ours, theirs), limit, f"{median(ours):.1f} ms")

    jvm, per_key = Case("transformWithState", 1000, ours=False), Case("per key", 1000)
    yield figure("p50", per_key, "p50", 1.0, 5.0)
    yield figure("p99", per_key, "p99", 1.0, 15.0)
    yield figure("p50", per_key, "p50", 2.5, jvm)
    yield figure("p99", per_key, "p99", 2.0, jvm)
    yield figure("p50", Case("per key", 5000), "p50", 1.0, 10.0)
    yield figure("p99", Case("per key", 20_000), "p99", 1.0, 100.0)
    yield figure("p99", Case("vectorised", 40_000), "p99", 1.0, 100.0)
    for operator in ("transformWithState", "aggregation", "dropDuplicates"):
        ours, theirs = Case(operator, 1000), Case(operator, 1000, ours=False)
        for name, limit in (("p50", 1.1), ("p99", 1.3), ("commit_ms", 0.5)):
            yield figure(name.removesuffix("_ms"), ours, name, limit, theirs)


@contextmanager
def _driver(scratch: Path, logs: Path) -> Iterator[Driver]:
    counts = scratch / "counts.jar"
    _compile(counts)
    settings = {
        "spark.jars": session_jars(counts),
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
    }
    folder = logs.resolve() / "live"
    folder.mkdir(parents=True, exist_ok=True)
    with Driver(folder, f"local[{SLOTS}]", settings, program="integration.bench.live.program") as driver:
        yield driver.await_ready()


def _compile(jar: Path) -> None:
    """Compile Spark's own operator with the Scala compiler that PySpark brings."""
    import pyspark

    spark = str(Path(pyspark.__file__).parent / "jars" / "*")
    command = ["java", "-cp", spark, "scala.tools.nsc.Main", "-usejavacp", "-d", str(jar), str(COUNTS)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{COUNTS} cannot be compiled: {done.stdout}{done.stderr}")
