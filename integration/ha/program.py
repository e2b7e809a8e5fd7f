"""A driver as in ``integration.crash.program``, which says what has come of each of its queries."""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import SparkSession

from integration.crash.program import END, serve, start, state


def main() -> int:
    """Serve until stdin ends."""
    return serve({"outcomes": outcomes, "state": state})


def outcomes(spark: SparkSession, runs: list[dict[str, Any]]) -> list[str]:
    """Run queries side by side to their ends. Return what failed, by query; empty for a query that has done its work.

    Each is described by the arguments of ``start``.
    """
    queries = []
    for each in runs:
        try:
            queries.append(start(spark, **each))
        except Exception as problem:  # noqa: BLE001 - told to the test, which knows what it expects
            queries.append(problem)
    return [_end_of(each) for each in queries]


def _end_of(query: Any) -> str:  # noqa: ANN401 - a query, or why there is none
    try:
        if isinstance(query, Exception):
            raise query
        query.awaitTermination()
    except Exception as problem:  # noqa: BLE001 - told to the test, which knows what it expects
        return "" if END in str(problem) else f"{type(problem).__name__}: {problem}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
