"""The cluster of the tests, and applications on it."""

from __future__ import annotations

import os
import re
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import escape

import psutil
import pytest

import pyspark_ckpt
from integration.crash.driver import ROOT, environment
from integration.crash.processes import eventually
from integration.jvm import JAVA_OPTIONS
from integration.yarn import program
from integration.yarn.rows import USER
from pyspark_ckpt.testing.crashes.processes import MARK, find_marked, kill_marked
from tests.services import java_program
from tests.services.hdfs_service import MINI_CLUSTER
from tests.services.java_program import next_line, tell

Mode = Literal["client", "cluster"]

PROGRAM = Path(__file__).with_name("MiniYarn.java")
BESIDES = ROOT / ".tools" / "yarn" / "jars"
PYTHON = "./environment/bin/python"
MASTER = "org.apache.spark.deploy.yarn.ApplicationMaster"
EXECUTOR = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"
_NAME = re.compile(r"Submitted application (application_\w+)")
_SMALL = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.memoryOverhead": "700m",
    "spark.executor.instances": "2",
    "spark.executor.maxNumFailures": "20",  # by default 4, as many as a test kills
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",  # it gives its executors what begins with SPARK
    "spark.yarn.maxAppAttempts": "1",
}


@dataclass(frozen=True)
class Report:
    """What the resource manager knows of an application."""

    result: str
    attempts: int


class Application:
    """A submitted application, and the process that has submitted it."""

    def __init__(self, cluster: YarnCluster, process: subprocess.Popen[bytes], log: Path) -> None:
        """Return when YARN has accepted it."""
        self._cluster, self._process, self._log = cluster, process, log
        found = eventually(f"the name of an application, see {log}", self._find_name, 0.2)
        self.name = found

    def report(self) -> Report:
        """What the resource manager says now."""
        return self._cluster.report(self.name)

    def processes(self, kind: str, attempt: int | None = None) -> list[psutil.Process]:
        """Live JVMs in its containers: of the class ``kind``, of one attempt or of all."""
        name = self.name.replace("application", "container") + ("" if attempt is None else f"_{attempt:02d}_")
        return [each for each in find_marked(self._cluster.mark, kind) if _is_jvm_of(each, name)]

    def require_running(self) -> None:
        """Fail if it has ended."""
        assert self._process.poll() is None, self.logs()[-6000:]

    def await_end(self) -> Report:
        """Return the last report, when spark-submit has ended."""
        self._process.wait()
        return self.report()

    def logs(self) -> str:
        """What the submission and all containers have said."""
        return "".join(
            path.read_text(encoding="utf-8", errors="replace")
            for path in (self._log, *sorted(self._cluster.folder.glob(f"nodes/*/*-logDir-*/{self.name}/*/std*")))
        )

    def _find_name(self) -> str:
        said = self._log.read_text(encoding="utf-8", errors="replace")
        assert self._process.poll() is None, said[-6000:]
        found = _NAME.search(said)
        return found[1] if found else ""


@dataclass(frozen=True)
class YarnCluster:
    """A running YARN; ``mark`` is in the environment of all its containers.

    ``archives``: what containers have as Python, as a file here or one in HDFS, which a node fetches once for all.
    """

    folder: Path
    mark: str
    archives: Mapping[Mode, str]
    orders: subprocess.Popen[str]

    @contextmanager
    def submit(self, mode: Mode, *arguments: str, conf: Mapping[str, str] | None = None) -> Iterator[Application]:
        """Submit ``program.py`` as docs/deploying.md says; whatever still runs of it ends with the block."""
        folder = self.folder / f"submission-{uuid.uuid4().hex[:8]}"
        (folder / "temporary").mkdir(parents=True)
        own = environment(folder, self.mark)
        del own["PYTHONPATH"]
        own |= {"PYSPARK_PYTHON": PYTHON, "HADOOP_CONF_DIR": str(self.folder / "conf"), "HADOOP_USER_NAME": USER}
        log = folder / "submit.log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [*self._command(own["SPARK_HOME"], mode, conf or {}), program.__file__, *_fill_up(arguments)],
                cwd=folder,
                env=own,
                stdout=sink,
                stderr=sink,
            )
        try:
            yield Application(self, process, log)
        finally:
            process.kill()
            process.wait()
            kill_marked(self.mark)

    def report(self, application: str) -> Report:
        """What the resource manager knows of an application."""
        tell(self.orders.stdin, application)
        result, attempts = next_line(self.orders).split()
        return Report(result, int(attempts))

    def _command(self, home: str, mode: Mode, conf: Mapping[str, str]) -> Sequence[str]:
        given = {"spark.yarn.jars": f"local:{home}/jars/*", **_SMALL, "spark.pyspark.python": PYTHON, **conf}
        if mode == "client":
            given["spark.pyspark.driver.python"] = "python"
        flags = [word for key, value in given.items() for word in ("--conf", f"{key}={value}")]
        submit = [f"{home}/bin/spark-submit", "--master", "yarn", "--deploy-mode", mode]
        if mode == "cluster":
            submit += ["--jars", pyspark_ckpt.session.jar_path()]
        return [*submit, "--archives", f"{self.archives[mode]}#environment", *flags]


def _is_jvm_of(process: psutil.Process, container: str) -> bool:
    """Whether a process is the JVM of a container whose name begins so; a shell that starts one is none."""
    try:
        return "java" in process.name() and process.environ().get("CONTAINER_ID", "").startswith(container)
    except psutil.NoSuchProcess:
        return False


def _fill_up(arguments: Sequence[str]) -> Sequence[str]:
    """Return all arguments of the program: no wait, no suffix and no file if they are not given."""
    return [*arguments, *("0", "", "none")[len(arguments) - 1 :]]


@contextmanager
def running(folder: Path, file_system: str, archives: Mapping[Mode, str]) -> Iterator[YarnCluster]:
    """A cluster whose default file system is ``file_system``. Skips the test if there is none."""
    if not BESIDES.exists():
        pytest.skip("NOT RUN: needs Hadoop's mini cluster for YARN, which make fetches by Maven.")
    mark = uuid.uuid4().hex
    conf = folder / "conf"
    conf.mkdir(parents=True)
    _write_conf(conf / "core-site.xml", {"fs.defaultFS": file_system, "mark": f"{MARK}={mark}"})
    jars = [conf, *sorted(MINI_CLUSTER.glob("*.jar")), *sorted(BESIDES.glob("*.jar"))]
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHON", "SPARK"))}
    own["HADOOP_CONF_DIR"] = str(conf)
    with java_program.running(PROGRAM, jars, folder, folder / "yarn.log", environment=own) as process:
        next_line(process)
        try:
            yield YarnCluster(folder, mark, archives, process)
        finally:
            kill_marked(mark)


def _write_conf(path: Path, settings: Mapping[str, str]) -> None:
    entries = [
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in settings.items()
    ]
    path.write_text(f"<configuration>{''.join(entries)}</configuration>", encoding="utf-8")
