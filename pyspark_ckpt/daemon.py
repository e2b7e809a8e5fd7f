"""Spark's daemon for Python workers, with most of what they import loaded before it forks them.

A new worker takes over half a second to import its modules, and Spark ends a worker that was idle for a minute. All
workers share what is imported here. Spark's own daemon imports nothing before it forks, because a fork does not inherit
threads. This daemon therefore preloads only modules that start no threads; if one has started a thread, Spark's own
daemon takes over. NumPy starts no threads if ``OMP_NUM_THREADS`` is 1, which Spark sets for workers of one core. Arrow
starts none if its allocator is configured so.

Spark starts it as ``python -m pyspark_ckpt.daemon <module of the worker>``: ``configure`` sets
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
    "pyspark_ckpt.jobs.spark_job",
    "pyspark_ckpt.state_store.server.stores",
)
NUMERIC = (
    "numpy.random",
    "pandas",
    "pyspark_ckpt.operators",
    "pyspark_ckpt.state_store.savepoints.restoring.movement",
)
"""Imported as well if NumPy has one thread."""
_ALLOCATOR = "JE_ARROW_MALLOC_CONF"
_TASKS = Path("/proc/self/task")


def main() -> None:
    """Preload modules, then fork workers until Spark has gone."""
    if _TASKS.exists():
        try:
            with _stdout_to_stderr():
                for name in IMPORTED:
                    import_module(name)
                if os.environ.get("OMP_NUM_THREADS") == "1":
                    _import_numeric()
        except Exception as problem:  # noqa: BLE001 - only workers that use a broken package must fail
            sys.stderr.write(
                f"pyspark_ckpt.daemon: preloading failed, so each worker imports its modules itself: {problem!r}\n"
            )
            _hand_over()
        if len(list(_TASKS.iterdir())) > 1:
            _hand_over()
    gc.freeze()  # otherwise a garbage collection in a worker copies every shared page
    import_module(SPARKS).manager()


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send stdout to stderr: Spark reads numbers from stdout, and a module may print while it is imported."""
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
    """Replace this process by Spark's own daemon."""
    os.execv(sys.executable, [sys.executable, "-m", SPARKS, *sys.argv[1:]])  # noqa: S606 - no shell is wanted


def _import_numeric() -> None:
    os.environ.setdefault(_ALLOCATOR, "background_thread:false")
    for name in NUMERIC:
        import_module(name)
    seed, daemon = import_module("numpy.random").seed, os.getpid()

    def draw_other_numbers() -> None:
        """Reseed NumPy in each worker, as if it had imported NumPy itself. Forks of workers are left alone."""
        if os.getppid() == daemon:
            seed()

    os.register_at_fork(after_in_child=draw_other_numbers)


if __name__ == "__main__":
    main()
