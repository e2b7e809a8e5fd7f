"""Find the processes of one run, even orphans, by a mark in their environment, and end them by process id."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import psutil

MARK = "PYSPARK_CKPT_TESTING_MARK"
STATE_SERVER = "pyspark_ckpt.state_store.server"
WORKER_DAEMON = "daemon pyspark.worker"
JVM = "org.apache.spark.deploy.SparkSubmit"
EXECUTOR_JVM = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
END_S = 30.0


def find_marked(mark: str, word: str = "") -> list[psutil.Process]:
    """Return the live processes of a mark with ``word`` among their arguments."""
    return [each for each in _all() if _has_mark(each, mark) and word in read_arguments(each)]


def find_workers(mark: str) -> list[psutil.Process]:
    """Return the Python workers, without the daemons that they are forked from."""
    daemons = find_marked(mark, WORKER_DAEMON)
    pids = {each.pid for each in daemons}
    return [each for each in daemons if each.ppid() in pids]


def kill(process: psutil.Process) -> None:
    """Send SIGKILL; no error if the process is gone."""
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        if process.is_running():
            os.kill(process.pid, signal.SIGKILL)


def pause(process: psutil.Process) -> None:
    """Stop a process until ``resume``; no error if it is gone."""
    with suppress(psutil.NoSuchProcess):
        process.suspend()


def resume(process: psutil.Process) -> None:
    """Let a process that was paused go on; no error if it is gone."""
    with suppress(psutil.NoSuchProcess):
        process.resume()


def kill_marked(mark: str) -> None:
    """End every process of a mark, and those that they start meanwhile."""
    while found := find_marked(mark):
        for process in found:
            kill(process)
        psutil.wait_procs(found, timeout=END_S)


def read_arguments(process: psutil.Process) -> str:
    """Return the command line as one text; empty for a process that is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _all() -> Iterator[psutil.Process]:
    """Yield every process. ``psutil.process_iter`` passes over one that has the id of another it has seen before."""
    for pid in psutil.pids():
        with suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark
    except psutil.Error:
        return False
