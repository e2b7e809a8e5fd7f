"""A driver as in ``integration.crash.program``, which says what has come of each of its queries."""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.crash.program import END, Orders, serve, start, state


def main() -> int:
    """Serve until stdin ends."""
    orders: Orders = {"outcomes": outcomes, "state": state, "distinct_lines": distinct_lines, "read_lines": read_lines}
    return serve(orders)


def outcomes(spark: SparkSession, runs: list[dict[str, Any]]) -> list[str]:
    """Run queries side by side to their ends. Return what failed, by query; empty for a query that has done its work.

    Each is described by the arguments of ``start``.
    """
    started = [_start(spark, each) for each in runs]
    return [each if isinstance(each, str) else _end_of(each) for each in started]


def distinct_lines(spark: SparkSession, source: str, runs: list[dict[str, Any]]) -> list[str]:
    """Write each line of the files of ``source`` once into files, a file in each batch. Return what failed, by query.

    Each query has a ``folder`` for its checkpoint and its output, and ``conf``.
    """
    queries = []
    for each in runs:
        session = spark.newSession()
        for key, value in each["conf"].items():
            session.conf.set(key, value)
        lines = session.readStream.option("maxFilesPerTrigger", "1").text(source).dropDuplicates()
        writer = lines.writeStream.format("parquet").option("path", f"{each['folder']}/output")
        place = writer.option("checkpointLocation", f"{each['folder']}/checkpoint")
        queries.append(place.trigger(availableNow=True).start())
    return [_end_of(query) for query in queries]


def read_lines(spark: SparkSession, folder: str) -> list[int]:
    """Return the numbers that ``distinct_lines`` has written into its output."""
    return sorted(int(row.value) for row in spark.read.parquet(f"{folder}/output").collect())


def _start(spark: SparkSession, run: dict[str, Any]) -> StreamingQuery | str:
    try:
        return start(spark, **run)
    except Exception as problem:  # noqa: BLE001 - told to the test, which knows what it expects
        return _describe(problem)


def _end_of(query: StreamingQuery) -> str:
    try:
        query.awaitTermination()
    except Exception as problem:  # noqa: BLE001 - told to the test, which knows what it expects
        return "" if END in str(problem) else _describe(problem)
    return ""


def _describe(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"


if __name__ == "__main__":
    sys.exit(main())
