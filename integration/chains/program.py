"""A driver that plays one run of a course: see integration.crash.program."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from integration.chains.course import Course
from integration.chains.steps import COLUMNS, instant
from integration.crash.program import serve, write_once
from integration.operators.sources import Source


def run(spark: SparkSession, *, seed: int, number: int, folder: str, checkpoint: str, conf: Mapping[str, str]) -> int:
    """Play the run with this number until it has read all of its input; how many batches it took."""
    session = spark.newSession()
    for name, value in conf.items():
        session.conf.set(name, value)
    course = Course.of(seed)
    source = Source(COLUMNS, tuple(tuple((instant(at), *others) for at, *others in rows) for rows in course.batches))
    source.write(Path(folder) / "input", course.runs[number].first, course.runs[number].last)

    def write(rows: DataFrame, batch: int) -> None:
        shown = rows.select(f.unix_micros("at").alias("at"), "user", "n")
        write_once(Path(folder) / "output", shown, batch, program_may_change=False)

    query = (
        course.query(source.stream(session, Path(folder) / "input"))
        .writeStream.outputMode("append")
        .option("checkpointLocation", checkpoint)
        .foreachBatch(write)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return len(query.recentProgress)


if __name__ == "__main__":
    sys.exit(serve({"run": run}))
