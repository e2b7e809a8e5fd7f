"""A driver whose query reads one topic of Kafka, or two after they were composed: see ``integration.crash.program``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import pyspark_ckpt as ckpt
from integration.crash.program import serve
from integration.savepoints.test_source_names import EVOLUTION


class Count(ckpt.KeyedProcessor):
    """Counts the records of a user."""

    n = ckpt.ValueState("n", "long", default=0)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.n.update(self.n.value() + len(rows))
        yield key.user, self.n.value()


def _count(records: DataFrame) -> DataFrame:
    return ckpt.keyed(records, "user", uid="views").process(Count(), "user string, n long", "append")


def _distinct(records: DataFrame) -> DataFrame:
    return records.dropDuplicates(["user"]).selectExpr("user", "-1L AS n")


_OPERATORS = {"views": _count, "users": _distinct}


def run(spark: SparkSession, *, topics: dict[str, str], checkpoint: str, servers: str, are_named: bool) -> list[Any]:
    """Run a query over all that there is; return its output. ``topics``: by the operators over them, in their order."""
    session = spark.newSession()
    for name, value in EVOLUTION.items():
        session.conf.set(name, value if are_named else "false")
    options = {"kafka.bootstrap.servers": servers, "startingOffsets": "earliest"}
    parts = []
    for operator, topic in topics.items():
        reader = session.readStream.name(f"of_{operator}") if are_named else session.readStream
        rows = reader.format("kafka").options(**options, subscribe=topic).load()
        parts.append(_OPERATORS[operator](rows.selectExpr("CAST(key AS STRING) AS user")))
    frame = parts[0] if len(parts) == 1 else parts[0].union(parts[1])
    out: list[list[Any]] = []
    writer = frame.writeStream.outputMode("append").option("checkpointLocation", checkpoint)
    writer = writer.foreachBatch(lambda rows, _: out.extend(map(list, rows.collect())))
    writer.trigger(availableNow=True).start().awaitTermination()
    return sorted(out)


if __name__ == "__main__":
    sys.exit(serve({"run": run}))
