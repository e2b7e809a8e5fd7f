"""One schedule of cuts while a query runs: what befalls the network follows from a seed."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from integration.crash.processes import eventually
from integration.line_files import write_file
from integration.partitions.cluster import DRIVERS, MACHINES, WORKERS, Cluster, end

WORDS = [f"word {number}" for number in range(6)]
AHEAD = 3
"""So many files wait for the query, as long as there are cuts."""
LAST_FILES = 8
"""So many files come after the last cut."""
MOST_S = 240.0
"""After the last cut, a query that needs longer does not go on."""


class Feed:
    """Writes files of words, at the pace of the query: each cut meets a query at work, however fast that is.

    ``written`` has how often each word is there.
    """

    def __init__(self, query: Path, seed: int) -> None:
        """Begin with the first files."""
        self._query, self._draw = query, random.Random(seed)
        self.written, self._files = Counter[str](), 0
        self._is_last = threading.Event()
        (query / "lines").mkdir()
        self._write(AHEAD)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write no more."""
        self._is_last.set()
        self._thread.join()

    def complete(self) -> None:
        """Write the last files, and say so."""
        self.stop()
        self._write(LAST_FILES)
        (self._query / "complete").touch()

    def _follow(self) -> None:
        while not self._is_last.wait(0.1):
            newest = max((_batch(path) for path in _outputs(self._query / "sink")), default=-1)
            self._write(newest + 1 + AHEAD - self._files)

    def _write(self, count: int) -> None:
        for _ in range(count):
            words = self._draw.choices(WORDS, k=5)
            write_file(self._query / "lines", self._files, words)
            self.written.update(words)
            self._files += 1


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
    feed = Feed(query, seed)
    began = time.monotonic()

    def tell(what: str) -> None:
        say(f"{time.monotonic() - began:6.1f} s  {what}")

    drivers = [cluster.start_driver("driver", query, 0)]
    supervisor = random.Random(f"supervisor {seed}")

    def supervise() -> None:
        if all(driver.poll() is not None for driver in drivers):
            tell(f"the drivers have ended with {[driver.returncode for driver in drivers]}; one starts again")
            drivers.append(cluster.start_driver(supervisor.choice(DRIVERS), query, len(drivers)))

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
            supervise()
            time.sleep(draw.choice((1, 5)))
        feed.complete()
        deadline = time.monotonic() + MOST_S
        while all(driver.poll() != 0 for driver in drivers):
            supervise()
            assert time.monotonic() < deadline, "the query does not go on"
            time.sleep(0.5)
        batches = max(map(_batch, _outputs(sink))) + 1
        tell(f"the query has ended after {batches} batches; its drivers: {[driver.poll() for driver in drivers]}")
    finally:
        feed.stop()
        cluster.network.mend()
        for driver in drivers:
            end(driver)
    _require_right(sink, feed.written)


def _outputs(sink: Path) -> list[Path]:
    """The files of all attempts of batches that are whole."""
    return [path for path in sink.iterdir() if not path.suffix]


def _batch(output: Path) -> int:
    return int(output.name.partition("-")[0])


def _require_right(sink: Path, expected: Counter[str]) -> None:
    """Fail unless the newest count of each word is right, and all attempts of a batch have output the same."""
    by_batch: dict[int, set[str]] = {}
    for path in _outputs(sink):
        by_batch.setdefault(_batch(path), set()).add(path.read_text(encoding="utf-8"))
    differing = {batch: texts for batch, texts in by_batch.items() if len(texts) > 1}
    assert not differing, f"attempts of a batch differ: {differing}"
    found: dict[str, int] = {}
    for batch in sorted(by_batch):
        found |= json.loads(next(iter(by_batch[batch])))
    assert found == dict(expected)
