"""Spark's daemon for Python workers, which forks them with most of what they import already there.

A new worker takes over half a second to begin, and Spark ends one that has been idle for a minute. What is imported
here is shared by all workers. Spark's own daemon imports nothing before it forks, because threads of a process are not
in its forks: so only modules that start none are imported here, and if one has, Spark's own daemon takes over.
NumPy starts none where ``OMP_NUM_THREADS`` is 1, as Spark sets it for workers of one core, and Arrow none where its
allocator is told so.

Started by Spark as ``python -m pyspark_ckpt.daemon <module of the worker>``: ``configure`` sets
``spark.python.daemon.module``.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NoReturn

SPARKS = "pyspark.daemon"
IMPORTED = (
    "pyspark.worker",
    "pyspark_ckpt.spark_job",
    "pyspark_ckpt.state_store.server.stores",
)
NUMERIC = (
    "numpy.random",
    "pandas",
    "pyspark_ckpt.operators",
    "pyspark_ckpt.state_store.savepoints.movement",
)
"""Imported as well where NumPy has one thread."""
_ALLOCATOR = "JE_ARROW_MALLOC_CONF"
_TASKS = Path("/proc/self/task")


def main() -> None:
    """Import, and fork workers until Spark has gone."""
    if _TASKS.exists():
        try:
            with _stdout_to_stderr():
                for name in IMPORTED:
                    import_module(name)
                if os.environ.get("OMP_NUM_THREADS") == "1":
                    _import_numeric()
        except Exception as problem:  # noqa: BLE001 - a package that is broken is the affair of workers that use it
            sys.stderr.write(f"pyspark_ckpt.daemon: workers import what they need themselves: {problem!r}\n")
            _hand_over()
        if len(list(_TASKS.iterdir())) > 1:
            _hand_over()
    gc.freeze()  # or a worker that looks for garbage copies every page of what it shares
    import_module(SPARKS).manager()


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Spark reads numbers from stdout: what a module prints while it is imported is not to be among them."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _hand_over() -> NoReturn:
    """Go on as Spark's own daemon."""
    os.execv(sys.executable, [sys.executable, "-m", SPARKS, *sys.argv[1:]])  # noqa: S606 - no shell is wanted


def _import_numeric() -> None:
    os.environ.setdefault(_ALLOCATOR, "background_thread:false")
    for name in NUMERIC:
        import_module(name)
    seed, daemon = import_module("numpy.random").seed, os.getpid()

    def draw_other_numbers() -> None:
        """In workers, as if each had imported NumPy itself; what these fork is their own affair."""
        if os.getppid() == daemon:
            seed()

    os.register_at_fork(after_in_child=draw_other_numbers)


if __name__ == "__main__":
    main()
