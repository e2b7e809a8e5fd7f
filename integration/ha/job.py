"""A user's program: one query to its end, on local Spark or as a driver that a cluster supervises.

``job.py <arguments in JSON>``: ``settings`` of the session, ``name`` and ``folder`` of the query, and what else
``integration.crash.program.start`` takes. It leaves a file ``<folder>/drivers/<process id>`` when it begins. Its exit code
is 0 if the query has done its work; else 1, and the failure is on stderr.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import pyspark_ckpt
from integration.crash.program import END, start


def main(arguments: str) -> int:
    """Run the query."""
    given = json.loads(arguments)
    builder = SparkSession.builder
    for key, value in given.pop("settings").items():
        builder = builder.config(key, value)
    drivers = Path(given["folder"]) / "drivers"
    drivers.mkdir(parents=True, exist_ok=True)
    (drivers / str(os.getpid())).touch()
    query = start(pyspark_ckpt.configure(builder).getOrCreate(), **given)
    try:
        query.awaitTermination()
    except Exception as problem:
        if END in str(problem):
            return 0
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
