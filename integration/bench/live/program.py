"""The driver: queries that number the rows of each key, from topic to topic in real-time mode."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyspark_ckpt as ckpt
from integration.crash.program import serve
from integration.progress import recent_progress, stop_after_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OUTPUT = "key string, number bigint, sent bigint"
_RUNNING: list[StreamingQuery] = []


class PerKey(ckpt.KeyedProcessor):
    """One key after the other."""

    counted = ckpt.ValueState("counted", "bigint", default=0)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        """Number the key's rows."""
        number = self.counted.value()
        for row in rows:
            number += 1
            yield key.key, number, row.sent
        self.counted.update(number)


class Vectorised(ckpt.VectorProcessor):
    """All keys at once."""

    counted = ckpt.ValueState("counted", "bigint")

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        """Number all rows."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        index = ctx.key_index
        before = pc.fill_null(self.counted.get(ctx.keys), 0).to_numpy(zero_copy_only=False)
        rows = np.bincount(index, minlength=len(ctx.keys))
        order = np.argsort(index, kind="stable")
        first = np.cumsum(rows) - rows
        number = np.empty(len(index), np.int64)
        number[order] = np.arange(len(index)) - first[index[order]] + 1
        self.counted.put(ctx.keys, pa.array(before + rows))
        return pa.table({"key": batch.column("key"), "number": number + before[index], "sent": batch.column("sent")})


def _keyed(processor: ckpt.KeyedProcessor | ckpt.VectorProcessor, rows: DataFrame) -> DataFrame:
    return ckpt.keyed(rows.select("key", "sent"), "key", uid="counts").process(processor, OUTPUT, "update")


def _count_in_jvm(rows: DataFrame) -> DataFrame:
    spark: Any = rows.sparkSession
    return type(rows)(spark._jvm.ckpt.bench.Counts.count(rows.select("key", "sent")._jdf), spark)


def _aggregate(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return rows.groupBy("key").agg(f.count("*").alias("number"), f.max("sent").alias("sent"))


def _deduplicate(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["number"])


def start(
    spark: SparkSession, *, operator: str, ours: bool, kafka: Mapping[str, str], checkpoint: str, batch_s: int
) -> None:
    """Start a query. ``kafka``: servers, source and sink. ``ours``: its state is in this project's store."""
    from pyspark.sql import functions as f

    spark.conf.set("spark.sql.streaming.stateStore.ckpt.realTime", str(ours).lower())
    servers = {"kafka.bootstrap.servers": kafka["servers"]}
    reader = spark.readStream.format("kafka").options(**servers, subscribe=kafka["source"], startingOffsets="earliest")
    parts = f.split(f.col("value").cast("string"), "\\|")
    rows = reader.load().select(
        parts[0].cast("long").alias("number"), parts[1].alias("key"), parts[2].cast("long").alias("sent")
    )
    out = {
        "per key": lambda: _keyed(PerKey(), rows),
        "vectorised": lambda: _keyed(Vectorised(), rows),
        "transformWithState": lambda: _count_in_jvm(rows),
        "aggregation": lambda: _aggregate(rows),
        "dropDuplicates": lambda: _deduplicate(rows),
    }[operator]()
    writer = out.select(f.concat_ws("|", "number", "key", "sent").alias("value")).writeStream.format("kafka")
    writer = writer.options(**servers, topic=kafka["sink"], checkpointLocation=checkpoint).outputMode("update")
    _RUNNING.append(writer.trigger(realTime=f"{batch_s} seconds").start())  # type: ignore[call-overload]


def stop(_spark: SparkSession) -> list[int]:
    """Stop the query after the end of a batch. Return what the commit of each batch took, in ms."""
    query = _RUNNING.pop()
    stop_after_batches(query)
    if query.exception() is not None:
        raise RuntimeError(str(query.exception()))
    return [each.stateOperators[0].commitTimeMs for each in recent_progress(query) if each.numInputRows]


if __name__ == "__main__":
    sys.exit(serve({"start": start, "stop": stop}, real_time=True))
