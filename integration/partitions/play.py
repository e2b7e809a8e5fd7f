"""One schedule of cuts while a query runs: what befalls the network follows from a seed."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path

from integration.crash.processes import eventually
from integration.line_files import write_files
from integration.partitions.cluster import DRIVERS, MACHINES, WORKERS, Cluster, end

FILES = 20
WORDS = [f"word {number}" for number in range(6)]
MOST_S = 240.0
"""After the last cut, a query that needs longer does not go on."""


def write_lines(folder: Path, seed: int) -> Counter[str]:
    """Write the files that the query reads; return how often each word is there."""
    draw = random.Random(seed)
    files = [draw.choices(WORDS, k=5) for _ in range(FILES)]
    write_files(folder, files)
    return Counter(chain.from_iterable(files))


def draw_cut(draw: random.Random, cluster: Cluster) -> tuple[str, Callable[[], None]]:
    """Draw what befalls the network next: its name, and what does it."""
    network = cluster.network
    kind = draw.choice(("cut", "one way", "slow", "two cuts", "hidden place"))
    if kind == "cut":
        name = draw.choice(MACHINES)
        return f"{name} is cut off", lambda: network.cut(name)
    if kind == "one way":
        name, other = draw.sample(MACHINES, 2)
        return f"{name} cannot reach {other}", lambda: network.silence(name, other)
    if kind == "slow":
        name, kbit = draw.choice((*WORKERS, "store")), draw.choice((128, 512))
        return f"{name} receives {kbit} kbit/s", lambda: network.slow(name, kbit)
    if kind == "hidden place":  # some machines reach the place, and others do not
        name = draw.choice((*WORKERS, *DRIVERS))

        def hide() -> None:
            network.silence(name, "store")
            network.silence(name, "names")

        return f"{name} cannot reach the place", hide
    first, second = draw.sample(MACHINES, 2)

    def cut_both() -> None:
        network.cut(first)
        network.cut(second)

    return f"{first} and {second} are cut off", cut_both


def play(cluster: Cluster, seed: int, say: Callable[[str], None] = print) -> None:
    """Run a query to its end under the cuts of a seed. Raises AssertionError unless its sink is right."""
    draw = random.Random(f"partitions {seed}")
    query = cluster.folder / f"query-{seed}"
    sink = query / "sink"
    sink.mkdir(parents=True)
    expected = write_lines(query / "lines", seed)
    began = time.monotonic()

    def tell(what: str) -> None:
        say(f"{time.monotonic() - began:6.1f} s  {what}")

    drivers = [cluster.start_driver("driver", query, 0)]
    try:
        eventually("a batch in the sink", lambda: any(sink.iterdir()), 0.2, MOST_S)
        for _ in range(draw.randint(2, 4)):
            what, act = draw_cut(draw, cluster)
            act()
            tell(what)
            time.sleep(draw.choice((1, 4, 15)) + draw.random())
            if draw.random() < 0.3:  # a supervisor that cannot reach the driver starts another one
                drivers.append(cluster.start_driver("standby", query, len(drivers)))
                tell("another driver starts on standby")
                time.sleep(draw.choice((1, 8)))
            cluster.network.mend()
            tell("the network is whole")
            time.sleep(draw.choice((1, 5)))
        deadline = time.monotonic() + MOST_S
        while all(driver.poll() != 0 for driver in drivers):
            if all(driver.poll() is not None for driver in drivers):
                tell(f"the drivers have ended with {[driver.returncode for driver in drivers]}; one starts again")
                drivers.append(cluster.start_driver(draw.choice(DRIVERS), query, len(drivers)))
            assert time.monotonic() < deadline, "the query does not go on"
            time.sleep(0.5)
        tell(f"the query has ended; its drivers: {[driver.poll() for driver in drivers]}")
    finally:
        cluster.network.mend()
        for driver in drivers:
            end(driver)
    _require_right(sink, expected)


def _require_right(sink: Path, expected: Counter[str]) -> None:
    """Fail unless the newest count of each word is right, and all attempts of a batch have output the same."""
    by_batch: dict[int, set[str]] = {}
    for path in sink.iterdir():
        if not path.suffix:
            by_batch.setdefault(int(path.name.partition("-")[0]), set()).add(path.read_text(encoding="utf-8"))
    differing = {batch: texts for batch, texts in by_batch.items() if len(texts) > 1}
    assert not differing, f"attempts of a batch differ: {differing}"
    found: dict[str, int] = {}
    for batch in sorted(by_batch):
        found |= json.loads(next(iter(by_batch[batch])))
    assert found == dict(expected)
