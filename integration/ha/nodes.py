"""What Kubernetes does with a driver, in small: a node runs it, and when it is lost another node does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from integration.crash import processes
from integration.crash.driver import LOCAL, OPTIONS, environment
from integration.jvm import JAVA_OPTIONS
from pyspark_ckpt.testing.crashes.processes import find_marked, kill_marked

SETTINGS = {
    "spark.master": LOCAL,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "600m",
    "spark.network.timeout": "900s",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
}


class Node:
    """A machine with one driver: its processes are found by a mark, and its folders are its own."""

    def __init__(self, folder: Path, runs: Sequence[Mapping[str, Any]]) -> None:
        """Start a driver of ``integration.ha.job``, which has ``runs``."""
        self.mark = uuid.uuid4().hex
        folder.mkdir(parents=True)
        (folder / "temporary").mkdir()
        java = f"{JAVA_OPTIONS} -Djava.io.tmpdir={folder / 'temporary'}"
        own = {f"{OPTIONS}localDir": str(folder / "local"), "spark.local.dir": str(folder / "scratch")}
        arguments = {"settings": {**SETTINGS, "spark.driver.extraJavaOptions": java, **own}, "runs": runs}
        self._log = folder / "driver.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "integration.ha.job", json.dumps(arguments)],
                stdout=log,
                stderr=log,
                cwd=folder,
                env=environment(folder, self.mark),
            )

    def kill(self) -> None:
        """The machine is lost."""
        kill_marked(self.mark)
        self._process.wait()

    def pause(self) -> list[psutil.Process]:
        """The machine stands still, and nobody hears of it. Return what stands still."""
        found = find_marked(self.mark)
        for process in found:
            os.kill(process.pid, signal.SIGSTOP)
        return found

    def await_end(self) -> int:
        """Return the exit code of the driver."""
        processes.eventually(f"the end of the driver, see {self._log}", lambda: self._process.poll() is not None, 0.1)
        return int(self._process.returncode)

    def log(self) -> str:
        """What the driver has said."""
        return self._log.read_text(encoding="utf-8", errors="replace")


@contextmanager
def nodes(folder: Path, *runs: Mapping[str, Any]) -> Iterator[Iterator[Node]]:
    """Yield nodes that have the same ``runs``, each started when it is asked for. None outlives the block."""
    started: list[Node] = []

    def start() -> Iterator[Node]:
        while True:
            started.append(Node(folder / f"node-{len(started)}", runs))
            yield started[-1]

    try:
        yield start()
    finally:
        for node in started:
            node.kill()
