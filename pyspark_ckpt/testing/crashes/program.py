"""``python -m pyspark_ckpt.testing.crashes.program JOB``: one life of a query that ``crash`` kills.

It prints STARTED when the query has started. Its exit code is 0 if the query has read all of its input.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from pyspark_ckpt.testing.crashes.job import Job


def main(path: str) -> None:
    """Run the job in a file."""
    job = Job.read(Path(path))
    builder = ckpt.configure(SparkSession.builder)
    for key, value in job.conf.items():
        builder = builder.config(key, value)
    job.run(builder.getOrCreate())


if __name__ == "__main__":
    main(sys.argv[1])
