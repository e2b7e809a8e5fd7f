"""A server of a test in a process of its own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.services.ports import find_free_port

START_S = 60
MAX_PORTS = 5


@contextmanager
def running(
    command: Callable[[int], Sequence[str]],
    log: Path,
    environment: Mapping[str, str] | None = None,
    call: Callable[[int], Any] | None = None,
) -> Iterator[int]:
    """The port of a server that listens there; it is killed in the end.

    A server whose port was taken gets another one. ``call``: it fails while the server only listens. Raises
    RuntimeError with the end of its log if the server does not start, or has ended by itself meanwhile, and
    TimeoutError if it does not answer.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(MAX_PORTS):
        port = find_free_port()
        with log.open("wb") as out:
            process = subprocess.Popen(command(port), cwd=log.parent, env=environment, stdout=out, stderr=out)
        try:
            if _is_ready(process, port, call):
                yield port
                if process.poll() is not None:
                    raise _describe("has ended by itself", process, log)
                return
        finally:
            process.kill()
            process.wait()
    raise _describe("did not start", process, log)


def _is_ready(process: subprocess.Popen[bytes], port: int, call: Callable[[int], Any] | None) -> bool:
    """Wait until this very process listens: if the port was taken, another server may answer there.

    Return False if it has ended. Raises TimeoutError, from what ``call`` raised last.
    """
    deadline, failure = time.monotonic() + START_S, None
    while process.poll() is None:
        try:
            if _listens(process.pid, port):
                if call is not None:
                    call(port)
                return True
        except Exception as problem:  # noqa: BLE001 - whatever a server says that is not ready
            failure = problem
        if time.monotonic() > deadline:
            raise TimeoutError(f"{process.args!r} did not answer within {START_S} s.") from failure
        time.sleep(0.05)
    return False


def _listens(pid: int, port: int) -> bool:
    try:
        found = psutil.Process(pid).net_connections()
    except psutil.NoSuchProcess:
        return False
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in found)


def _describe(problem: str, process: subprocess.Popen[bytes], log: Path) -> RuntimeError:
    end = log.read_text(errors="replace")[-2000:]
    return RuntimeError(f"{process.args!r} {problem}, with code {process.returncode}. Its log ends with: {end}")
