"""Spark's daemon for Python workers, which forks them with most of what they import already there.

A new worker takes a quarter of a second to begin, and Spark ends one that has been idle for a minute. What is imported
here is shared by all workers. Spark's own daemon imports nothing before it forks, because threads of a process are not
in its forks: so only modules that start none are imported here, and if one has, Spark's own daemon takes over.

Started by Spark as ``python -m pyspark_ckpt.daemon <module of the worker>``: ``configure`` sets
``spark.python.daemon.module``.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from pathlib import Path

SPARKS = "pyspark.daemon"
IMPORTED = (
    "pyspark.worker",
    "pyspark_ckpt.spark_job",
    "pyspark_ckpt.state_store.stores",
)
_TASKS = Path("/proc/self/task")


def main() -> None:
    """Import, and fork workers until Spark has gone."""
    if _TASKS.exists():
        for name in IMPORTED:
            import_module(name)
        if len(list(_TASKS.iterdir())) > 1:
            os.execv(sys.executable, [sys.executable, "-m", SPARKS, *sys.argv[1:]])  # noqa: S606 - no shell is wanted
    gc.freeze()  # or a worker that looks for garbage copies every page of what it shares
    import_module(SPARKS).manager()


if __name__ == "__main__":
    main()
