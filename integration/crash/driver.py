"""The test's side of a driver process: start it, give it orders, kill it or parts of it, read its logs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import psutil
import pyspark
from typing_extensions import Self

from integration.crash import processes
from integration.jvm import JAVA_OPTIONS
from pyspark_ckpt.testing.crashes.processes import (
    JVM,
    MARK,
    STATE_SERVER,
    find_marked,
    find_workers,
    kill,
    kill_marked,
    read_arguments,
)

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = "spark.sql.streaming.stateStore.ckpt."
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
LOCAL = "local[4,4]"
LOOK_S = 0.2  # between looks at all processes of the machine
LOCAL_CLUSTER = "local-cluster[2,1,1024]"

_LOCK_TROUBLE = re.compile(r"\block(s|ed|ing)?\b|ConflictError|could not be acquired|not released", re.IGNORECASE)
_OURS = re.compile(r"ckpt|state ?(store|server)|StateStore", re.IGNORECASE)


class DriverDiedError(Exception):
    """The driver ended before it answered."""


class OrderFailedError(Exception):
    """The driver answered with an error."""


class Driver:
    """A driver process and all that it starts, in a folder of its own. A context manager: nothing outlives it."""

    def __init__(
        self,
        folder: Path,
        master: str = LOCAL,
        conf: Mapping[str, str] | None = None,
        mark: str | None = None,
        program: str = "integration.crash.program",
    ) -> None:
        """Start the process; ``await_ready`` waits for its session.

        ``mark`` is in the environment of all its processes; a cluster started beforehand has to have it, too.
        ``program``: the module that obeys the orders.
        """
        self.folder = folder / f"driver-{uuid.uuid4().hex[:8]}"
        self.mark = mark or uuid.uuid4().hex
        temporary = self.folder / "temporary"
        temporary.mkdir(parents=True)
        self._log = (self.folder / "driver.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", program, json.dumps(self._settings(master, conf or {}))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=self.folder,
            env=environment(self.folder, self.mark),
            text=True,
        )
        self._ready = False
        self._unanswered = 1  # that the session is there

    def __enter__(self) -> Self:
        """Wait until the session is there."""
        return self.await_ready()

    def __exit__(self, *_: object) -> None:
        """End every process, then remove what they left on disk, but for the logs."""
        self.close()

    def await_ready(self) -> Self:
        """Return when the session is there. Raises DriverDiedError."""
        if not self._ready:
            self.receive()
            self._ready = True
        return self

    def is_alive(self) -> bool:
        """Whether the driver can take orders: its Python and its JVM run."""
        return self._process.poll() is None and bool(self._find(JVM))

    def is_idle(self) -> bool:
        """Whether it has answered all orders: else the next order would get the answer of an earlier one."""
        return not self._unanswered

    def close(self) -> None:
        """See ``__exit__``."""
        kill_marked(self.mark)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            _close_quietly(stream)
        for scratch in ("temporary", "local", "scratch", "warehouse"):
            shutil.rmtree(self.folder / scratch, ignore_errors=True)

    # --- orders ---

    def send(self, order: str, **arguments: Any) -> None:  # noqa: ANN401 - JSON
        """Give an order without waiting for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"order": order, **arguments}) + "\n")
        self._process.stdin.flush()
        self._unanswered += 1

    def receive(self) -> Any:  # noqa: ANN401 - JSON
        """The answer to the oldest order. Raises OrderFailedError, DriverDiedError."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        while line and not line.startswith('{"'):
            line = self._process.stdout.readline()
        if not line:
            raise DriverDiedError(self.log()[-6000:])
        self._unanswered -= 1
        answer = json.loads(line)
        if "error" in answer:
            raise OrderFailedError(answer["error"])
        return answer["ok"]

    def has_answered(self, within_s: float) -> bool:
        """Wait for the next answer, or the driver's death, no longer than this; whether it is there."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout.fileno()], [], [], within_s)[0])

    def order(self, order: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON
        """Give an order and wait for the answer. Raises OrderFailedError, DriverDiedError."""
        self.send(order, **arguments)
        return self.receive()

    def run(self, *runs: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Run queries side by side to their end. Raises OrderFailedError."""
        self.send("run", runs=runs)
        answer: list[dict[str, Any]] = self.receive()
        return answer

    def state(
        self, name: str, folder: Path, conf: Mapping[str, str] | None = None, checkpoint: str = ""
    ) -> list[list[str]]:
        """All state of a query, read in a session with ``conf``."""
        self.send("state", name=name, folder=str(folder), conf=conf, checkpoint=checkpoint)
        rows: list[list[str]] = self.receive()
        return rows

    # --- processes ---

    def jvm(self) -> psutil.Process:
        """The driver's JVM."""
        return processes.eventually("the driver's JVM", lambda: self._find(JVM), LOOK_S)[0]

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs, of a cluster."""
        return [process for process in self._find(processes.EXECUTOR) if "java" in process.name()]

    def executor(self, executor_id: str) -> psutil.Process:
        """The JVM of one executor."""
        wanted = f"--executor-id {executor_id} "
        return next(process for process in self.executors() if wanted in read_arguments(process) + " ")

    def state_servers(self) -> list[psutil.Process]:
        """All state servers."""
        return self._find(STATE_SERVER)

    def python_workers(self) -> list[psutil.Process]:
        """The Python workers, without the daemons they are forked from."""
        return find_workers(self.mark)

    def kill_state_servers(self) -> None:
        """SIGKILL to every state server, and wait until they are gone."""
        servers = self.state_servers()
        for server in servers:
            kill(server)
        psutil.wait_procs(servers, timeout=processes.PATIENCE_S)

    def kill_driver(self, part: str = "both") -> None:
        """SIGKILL to the driver: its ``jvm``, its ``python`` or ``both``. Everything below must end by itself."""
        if part in ("both", "jvm"):
            kill(self.jvm())
            processes.eventually("the end of the JVM", lambda: not self._find(JVM), LOOK_S)
        if part in ("both", "python"):
            self._process.kill()
            self._process.wait()

    def await_end(self) -> None:
        """Return when no process is left but the driver's Python. Raises AssertionError if one stays."""
        processes.eventually(
            f"the end of all processes, see {self.folder}",
            lambda: {process.pid for process in self._find("")} <= {self._process.pid},
            LOOK_S,
        )

    def _find(self, word: str) -> list[psutil.Process]:
        return find_marked(self.mark, word)

    # --- what they leave ---

    def fired(self) -> list[Path]:
        """Marks of the fail points that have acted, of all state servers."""
        return sorted((self.folder / "local").glob("ckpt-*/server/failpoints/*"))

    def lose_local_state(self) -> None:
        """Kill all state servers and take their local folders away: the next query starts servers with its options."""
        self.kill_state_servers()
        for home in (self.folder / "local").glob("ckpt-*"):
            lost = home.with_name(f"lost-{uuid.uuid4().hex}")
            home.rename(lost)
            shutil.rmtree(lost, ignore_errors=True)

    def fired_pattern(self, point: str) -> str:
        """Pattern of the mark that a fail point leaves when it acts."""
        return str(self.folder / "local" / "ckpt-*" / "server" / "failpoints" / f"{point}-*")

    def await_fired(self, point: str) -> Path:
        """Return when a fail point has acted: the first mark."""
        return processes.eventually(
            f"fail point {point}, see {self.folder}",
            lambda: [mark for mark in self.fired() if mark.name.startswith(f"{point}-")],
        )[0]

    def log(self) -> str:
        """What the driver has written to its log."""
        return (self.folder / "driver.log").read_text(encoding="utf-8", errors="replace")

    def all_logs(self) -> str:
        """The logs of the driver and of all executors."""
        executors = sorted(
            (*self.folder.glob("spark/work/app-*/*/std*"), *self.folder.parent.glob("work*/app-*/*/std*"))
        )
        return self.log() + "".join(path.read_text(encoding="utf-8", errors="replace") for path in executors)

    def lock_trouble(self) -> list[str]:
        """Log lines about state that speak of a lock; there must be none."""
        return [line for line in self.all_logs().splitlines() if _OURS.search(line) and _LOCK_TROUBLE.search(line)]

    def _settings(self, master: str, conf: Mapping[str, str]) -> dict[str, str]:
        java = f"{JAVA_OPTIONS} -Djava.io.tmpdir={self.folder / 'temporary'}"
        return {
            "spark.master": master,
            "spark.app.name": "crash",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "600m",
            "spark.driver.extraJavaOptions": java,
            "spark.executor.extraJavaOptions": java,
            "spark.local.dir": str(self.folder / "scratch"),
            "spark.log.level": "WARN",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.task.maxFailures": "8",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.sql.streaming.stateStore.maintenanceInterval": "300ms",
            f"{OPTIONS}localDir": str(self.folder / "local"),
            **conf,
        }


class Relay:
    """Hands the same driver to one test after another, and starts the next when a test has killed it."""

    def __init__(self, root: Path, master: str, program: str = "integration.crash.program") -> None:
        """Start drivers of ``master`` below ``root`` when they are asked for. ``program``: see Driver."""
        self._root = root
        self._master = master
        self._program = program
        self._driver: Driver | None = None

    def driver(self) -> Driver:
        """A driver that lives, and has done what earlier tests ordered."""
        if self._driver is not None and not (self._driver.is_alive() and self._driver.is_idle()):
            self.close()
        if self._driver is None:
            self._driver = Driver(self._root, self._master, program=self._program)
        return self._driver.await_ready()

    def close(self) -> None:
        """End the driver, if there is one."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None


def environment(folder: Path, mark: str) -> dict[str, str]:
    return {
        **os.environ,
        MARK: mark,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(_spark_home(folder / "spark")),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TMPDIR": str(folder / "temporary"),
    }


def _spark_home(folder: Path) -> Path:
    """A Spark home of links: the work folders of executors come to lie in it, not beside the installed package."""
    folder.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        if path.name != "work":
            (folder / path.name).symlink_to(path)
    return folder


def _close_quietly(stream: IO[Any] | None) -> None:
    if stream is not None:
        with contextlib.suppress(BrokenPipeError):
            stream.close()
