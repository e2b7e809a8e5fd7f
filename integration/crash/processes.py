"""Find the processes that a test has started, also orphans, by a mark in their environment; end them by pid."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import psutil

MARK = "CKPT_TEST_MARK"
PATIENCE_S = 120.0
STATE_SERVER = "pyspark_ckpt.state_store.server"
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
WORKER_DAEMON = "daemon pyspark.worker"

_T = TypeVar("_T")


def marked(mark: str, word: str = "") -> list[psutil.Process]:
    """Live processes of a mark with ``word`` among their arguments."""
    return [process for process in _all() if _has_mark(process, mark) and word in arguments(process)]


def arguments(process: psutil.Process) -> str:
    """The command line as one text; empty for a process that is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def kill(process: psutil.Process) -> None:
    """SIGKILL; no error if it is gone."""
    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
        if process.is_running():
            os.kill(process.pid, signal.SIGKILL)


def kill_all(mark: str) -> None:
    """End every process of a mark, and those they start meanwhile."""
    while found := marked(mark):
        for process in found:
            kill(process)
        psutil.wait_procs(found, timeout=5)


def eventually(what: str, look: Callable[[], _T], pause_s: float = 0.02) -> _T:
    """Return the first truthy result of ``look``. Raises AssertionError if there is none for a long time."""
    deadline = time.monotonic() + PATIENCE_S
    while not (seen := look()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(pause_s)
    return seen


def _all() -> Iterator[psutil.Process]:
    """Every process. ``psutil.process_iter`` passes over one that has the id of another it has seen before."""
    for pid in psutil.pids():
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark
    except psutil.Error:
        return False
