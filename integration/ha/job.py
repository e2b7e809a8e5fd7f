"""A user's program: queries to their ends, one after the other. A cluster may supervise it.

``job.py <arguments in JSON>``: ``settings`` of the session, and ``runs``: for each query what
``integration.crash.program.start`` takes. The exit code is 0 if the queries have done their work; else it is 1, and the
failure is on stderr.
"""

from __future__ import annotations

import json
import sys

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import pyspark_ckpt
from integration.crash.program import END, start


def main(arguments: str) -> int:
    """Run the queries."""
    given = json.loads(arguments)
    builder = SparkSession.builder
    for key, value in given["settings"].items():
        builder = builder.config(key, value)
    spark = pyspark_ckpt.configure(builder).getOrCreate()
    for run in given["runs"]:
        try:
            start(spark, **run).awaitTermination()
        except StreamingQueryException as problem:
            if END not in str(problem):
                raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
