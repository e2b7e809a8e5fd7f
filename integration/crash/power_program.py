"""A driver that counts the lines of files, for the tests of lost power: see ``integration.crash.program``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from integration.crash.program import serve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def begin(spark: SparkSession, lines: str, checkpoint: str, sink: str) -> str:
    """Start the query, which reads a file a batch, and return its id."""
    return _start(spark, lines, checkpoint, sink, processingTime="0 seconds").id


def finish(spark: SparkSession, lines: str, checkpoint: str, sink: str) -> str:
    """Run the query on all that there is, and return its id."""
    query = _start(spark, lines, checkpoint, sink, availableNow=True)
    query.awaitTermination()
    return query.id


def _start(spark: SparkSession, lines: str, checkpoint: str, sink: str, **trigger: Any) -> StreamingQuery:  # noqa: ANN401
    def write(rows: DataFrame, batch: int) -> None:
        counted = {row.value: row["count"] for row in rows.collect()}
        Path(sink, str(batch)).write_text(json.dumps(counted), encoding="utf-8")

    counted = spark.readStream.option("maxFilesPerTrigger", 1).text(lines).groupBy("value").count()
    to_files = counted.writeStream.outputMode("update").option("checkpointLocation", checkpoint).foreachBatch(write)
    return to_files.trigger(**trigger).start()


if __name__ == "__main__":
    raise SystemExit(serve({"begin": begin, "finish": finish}))
