"""Stop a driver at a known step of a batch, and let it go on: its JVM, its Python, its state server and its workers."""

from __future__ import annotations

import os
import signal
import subprocess
import zipfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pyspark

import pyspark_ckpt
from integration.crash import processes
from integration.crash.driver import Driver
from integration.short import has
from pyspark_ckpt.testing.crashes.processes import find_marked
from tests.services.java_program import JAVA

SOURCE = Path(__file__).with_name("HoldingFiles.java")
FILES = "spark.sql.streaming.checkpointFileManagerClass"
OURS = "org.apache.spark.sql.ckpt.FencedCheckpointFileManager"
HELD_BATCH = 2

STEPS = {
    "before-offsets": (f"offsets/{HELD_BATCH}", "before"),
    "in-offsets": (f"offsets/{HELD_BATCH}", "write"),
    "in-tasks": None,
    "after-tasks": None,
    "before-commit": (f"commits/{HELD_BATCH}", "before"),
    "in-commit": (f"commits/{HELD_BATCH}", "write"),
}
"""Where the driver can be held: at an entry of Spark's logs, in a task, or in the function of ``foreachBatch``."""


def hold_at(step: str, mark: Path, files: str) -> dict[str, Any]:
    """Return what makes a query stop at a step: arguments of ``integration.crash.program.start``, with confs.

    ``mark`` appears when it is held there. It goes on when there is a file with ``.go`` after that name.
    ``files``: the class that manages the files of the checkpoint.
    """
    place = STEPS[step]
    if place is not None:
        return {"conf": hold_entry(*place, mark, files)}
    conf = {FILES: files} if files else {}
    if step == "in-tasks":
        return {"conf": conf, "fault": {"kind": "hold", "marker": str(mark), "batch": HELD_BATCH}}
    return {"conf": conf, "hold": {"batch": HELD_BATCH, "file": f"{mark}.go", "mark": str(mark)}}


def hold_entry(entry: str, moment: str, mark: Path, files: str) -> dict[str, str]:
    """Return confs of a query that is held ``before`` it begins an entry of a log, or when only its last step is left.

    ``mark`` and ``files`` as for ``hold_at``.
    """
    own = {"hold.entry": entry, "hold.moment": moment, "hold.mark": str(mark), "hold.files": files}
    return {FILES: "HoldingFiles", **own}


def await_marks(marks: Iterable[Path]) -> None:
    """Return when all marks are there."""
    for mark in marks:
        processes.eventually(f"{mark.name} is held", mark.exists, 0.1)


def stop(driver: Driver) -> list[psutil.Process]:
    """Stop all processes of a driver, as a machine does that sleeps. Return them."""
    found = find_marked(driver.mark)
    for process in found:
        os.kill(process.pid, signal.SIGSTOP)
    return found


def wake(stopped: Iterable[psutil.Process], marks: Iterable[Path]) -> None:
    """Let stopped processes go on, and what was held in them."""
    for mark in marks:
        mark.with_name(f"{mark.name}.go").touch()
    resume(stopped)


def resume(stopped: Iterable[psutil.Process]) -> None:
    """Let stopped processes go on."""
    for process in stopped:
        os.kill(process.pid, signal.SIGCONT)


@cache
def jars(folder: Path) -> str:
    """Return the jars of a driver: ours, and one in ``folder`` with the class that holds queries."""
    classes = folder / "classes"
    classes.mkdir(parents=True)
    path = os.pathsep.join(map(str, Path(pyspark.__file__).with_name("jars").glob("*.jar")))
    source = folder / SOURCE.name
    source.write_text(_place_of_spark(SOURCE.read_text(encoding="utf-8")), encoding="utf-8")
    compiler = [*JAVA, "-m", "jdk.compiler/com.sun.tools.javac.Main", "--release", "17", "-cp", path]
    subprocess.run([*compiler, "-d", str(classes), str(source)], check=True)
    with zipfile.ZipFile(folder / "holding.jar", "w") as jar:
        for each in classes.iterdir():
            jar.write(each, each.name)
    return ",".join([pyspark_ckpt.session.jar_path(), str(folder / "holding.jar")])


def _place_of_spark(source: str) -> str:
    """Return the source with the package in which this Spark has its checkpoint files."""
    return source if has("4.1") else source.replace(".streaming.checkpointing.", ".streaming.")
