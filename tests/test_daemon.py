"""The daemon forks Python workers that have imported what they need, and never with threads."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

WORD = "of the factory"
_INT = struct.Struct(">i")
WITH_THREADS = "import sys; from pyspark_ckpt import daemon; daemon.IMPORTED += ('numpy',); daemon.main()"
WITHOUT_PACKAGE = WITH_THREADS.replace("numpy", "no_such_package")
DRAWING = """
import os, numpy
from pyspark_ckpt import daemon
daemon._import_numeric()
for _ in range(3):
    if not os.fork():
        if os.fork():
            os.wait()
        os.write(1, f"{numpy.random.random()}\\n".encode())
        os._exit(0)
    os.wait()
"""
pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted by Linux alone")


@contextmanager
def running(*arguments: str, threads: str = "", said: bytes = b"") -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A daemon as Spark starts it, and its port. ``threads``: what NumPy may have. ``said``: in what it tells."""
    given = {"PYTHON_WORKER_FACTORY_SECRET": WORD, "SPARK_REUSE_WORKER": "1", "OMP_NUM_THREADS": threads}
    surroundings = {**os.environ, **given}
    command = [sys.executable, *arguments, "pyspark.worker"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=surroundings) as process:
        try:
            assert process.stdout is not None
            (port,) = _INT.unpack(process.stdout.read(_INT.size))
            yield process, port
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)
            assert process.stderr is not None
            told = process.stderr.read()
            assert said in told
            assert bool(said) == bool(told)


@contextmanager
def worker(port: int) -> Iterator[int]:
    """A worker as Spark asks for one: its process id. It waits for a task."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        (pid,) = _INT.unpack(connection.recv(_INT.size))
        connection.sendall(_INT.pack(len(WORD)) + WORD.encode())
        assert connection.recv(64) == _INT.pack(2) + b"ok"
        yield pid


@pytest.mark.parametrize("threads", ["", "1"])
def test_workers_are_forked_without_threads(threads: str) -> None:
    command = "-m", "pyspark_ckpt.daemon"
    with running(*command, threads=threads) as (process, port), worker(port) as pid, worker(port) as other:
        assert len({process.pid, pid, other}) == len((process, pid, other))
        for each in (process.pid, pid):
            assert len(list(Path(f"/proc/{each}/task").iterdir())) == 1
            imported = Path(f"/proc/{each}/maps").read_text(encoding="utf-8")
            assert "rocksdict" in imported
            assert ("libarrow" in imported) == ("pandas" in imported) == bool(threads)


def test_what_a_module_prints_while_it_is_imported_is_not_taken_for_the_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "noisy.py").write_text(
        "import os\nprint('one line')\nos.write(1, b'and another')\nprint('no end', end='')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code = WITH_THREADS.replace("numpy", "noisy")
    with running("-c", code, said=b"and another") as (process, port), worker(port) as pid:
        assert pid != process.pid


def test_workers_draw_different_random_numbers_and_what_they_fork_does_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRAWING],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    drawn = done.stdout.split()
    assert len(drawn) == 6
    assert len(set(drawn)) == 3


def test_sparks_daemon_takes_over_when_what_is_imported_starts_threads() -> None:
    with running("-c", WITH_THREADS) as (process, port), worker(port):
        assert b"pyspark.daemon" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert "rocksdict" not in Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")


def test_sparks_daemon_takes_over_when_a_package_cannot_be_imported() -> None:
    with running("-c", WITHOUT_PACKAGE, said=b"no_such_package") as (process, port), worker(port):
        assert b"pyspark.daemon" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
