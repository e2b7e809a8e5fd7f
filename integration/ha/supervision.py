"""A Python driver that Spark's standalone cluster supervises, and workers that stand still.

spark-submit refuses Python programs in cluster mode on such a cluster. Their launcher is a Java program, which it
takes.
"""

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

import pyspark_ckpt
from integration.clusters.standalone import standalone_cluster
from integration.crash import processes
from integration.crash.driver import environment
from integration.ha import job
from integration.jvm import JAVA_OPTIONS
from pyspark_ckpt.testing.crashes.processes import find_marked, kill_marked, read_arguments

LAUNCHER = "org.apache.spark.deploy.PythonRunner"
DRIVER = "org.apache.spark.deploy.worker.DriverWrapper"
WORKERS = ("127.0.0.1", "127.0.0.1", "127.0.0.1")
LOST_S = 6
"""A worker that has not been heard of for so long is lost to the master."""
SETTINGS = {
    "spark.cores.max": "1",
    "spark.driver.memory": "512m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.log.level": "WARN",
    "spark.network.timeout": "900s",
    "spark.pyspark.python": sys.executable,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.ui.enabled": "false",
}


class Drivers:
    """The drivers of one submission: the first one, and those that have replaced it."""

    def __init__(self, folder: Path, mark: str) -> None:
        self._folder, self._mark = folder, mark
        self._workers: dict[int, psutil.Process] = {}

    def await_next(self) -> psutil.Process:
        """Return the next driver when it is there."""
        found = processes.eventually(f"a driver, see {self._folder}", self._find_new, 0.2)[0]
        self._workers[found.pid] = psutil.Process(found.ppid())
        return found

    def worker_of(self, driver: psutil.Process) -> psutil.Process:
        """Return the worker that has started a driver."""
        return self._workers[driver.pid]

    def pause_worker(self, driver: psutil.Process) -> list[psutil.Process]:
        """The machine of a driver stands still: its worker, and all that it has started. Return them."""
        worker = self.worker_of(driver)
        found = [worker, *worker.children(recursive=True)]
        for process in found:
            os.kill(process.pid, signal.SIGSTOP)
        return found

    def log(self, driver: psutil.Process) -> str:
        """What all drivers on the worker of a driver have said."""
        arguments = read_arguments(self.worker_of(driver)).split()
        work = Path(arguments[arguments.index("--work-dir") + 1])
        return "".join(path.read_text(encoding="utf-8", errors="replace") for path in work.glob("driver-*/stderr"))

    def await_end(self, driver: psutil.Process) -> None:
        """Return when a driver has ended."""
        processes.eventually(f"the end of a driver, see {self._folder}", lambda: driver not in self._find(), 0.2)

    def await_end_of_all(self) -> None:
        """Return when no driver is left."""
        processes.eventually(f"the end of all drivers, see {self._folder}", lambda: not self._find(), 0.5)

    def _find(self) -> list[psutil.Process]:
        return find_marked(self._mark, DRIVER)

    def _find_new(self) -> list[psutil.Process]:
        return [each for each in self._find() if each.pid not in self._workers]


@contextmanager
def supervised(folder: Path, runs: Sequence[Mapping[str, Any]]) -> Iterator[Drivers]:
    """Submit ``integration.ha.job`` with ``runs`` to a new cluster, which ends with the block."""
    mark = uuid.uuid4().hex
    (folder / "temporary").mkdir()
    own = environment(folder, mark)
    own["SPARK_DAEMON_JAVA_OPTS"] = f"-XX:TieredStopAtLevel=1 -Dspark.worker.timeout={LOST_S}"
    try:
        with standalone_cluster(folder, own, WORKERS) as url:
            conf = [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]
            mode = ["--master", url, "--deploy-mode", "cluster", "--supervise", "--class", LAUNCHER]
            arguments = [pyspark_ckpt.session.jar_path(), job.__file__, "", json.dumps({"settings": {}, "runs": runs})]
            submit = [f"{own['SPARK_HOME']}/bin/spark-submit", *mode, *conf, *arguments]
            done = subprocess.run(submit, cwd=folder, env=own, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-4000:]
            yield Drivers(folder, mark)
    finally:
        kill_marked(mark)
