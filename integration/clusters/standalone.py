"""A standalone Spark cluster on this machine, from the installed PySpark; it ends with its context."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from integration.crash.processes import eventually

_DEPLOY = "org.apache.spark.deploy"


@contextmanager
def standalone_cluster(
    folder: Path, environment: Mapping[str, str], hosts: Sequence[str] = ("127.0.0.1",)
) -> Iterator[str]:
    """A master and one worker for each of ``hosts`` (names of this machine); gives the master's URL."""
    with ExitStack() as stack:
        where = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = _daemon(stack, folder / "master.log", environment, [f"{_DEPLOY}.master.Master", *where])
        url = eventually("the master's URL", lambda: _url_in(master))
        assert url is not None
        for number, host in enumerate(hosts):
            where = ["--host", host, "--cores", "2", "--memory", "1g", "--webui-port", "0"]
            work = ["--work-dir", str(folder / f"work{number}"), url]
            log = _daemon(
                stack, folder / f"worker{number}.log", environment, [f"{_DEPLOY}.worker.Worker", *where, *work]
            )
            eventually("the worker's registration", partial(_has_registered, log))
        yield url


def _url_in(log: Path) -> str | None:
    found = re.search(r"spark://127\.0\.0\.1:\d+", log.read_text(encoding="utf-8"))
    return found[0] if found else None


def _has_registered(log: Path) -> bool:
    return "Successfully registered" in log.read_text(encoding="utf-8")


def _daemon(stack: ExitStack, log: Path, environment: Mapping[str, str], command: Sequence[str]) -> Path:
    sink = stack.enter_context(log.open("w", encoding="utf-8"))
    process = subprocess.Popen(
        [f"{environment['SPARK_HOME']}/bin/spark-class", *command],
        env={"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1", **environment},
        stdout=sink,
        stderr=sink,
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return log
