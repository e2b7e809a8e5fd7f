"""A program in a Spark Connect client, whose server it starts: all operators, a savepoint, a restore, a rescale.

``python -m integration.connect_program FOLDER`` prints what it has seen as JSON, in the last line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.connect.client import DefaultChannelBuilder

import pyspark_ckpt as ckpt
from integration.connect_operators import TIMED, make_queries
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.services.ports import find_free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.connect.grpc.binding.address": "127.0.0.1",
}
_COLUMNS = "k int, n bigint"
_RUNS = 2


class Count(ckpt.KeyedProcessor):
    """Counts the rows of a key in a state, and those of a batch in a counter. One timer waits for ever."""

    total = ckpt.ValueState("total", "bigint", default=0)
    never = ckpt.Timers("never", clock="processing")
    seen = ckpt.MetricCounter("seen")

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.total.update(self.total.value() + len(rows))
        self.seen.add(len(rows))
        self.never.register(ctx.processing_time_ms + 1_000_000_000)
        yield key.k, self.total.value()

    def on_timer(self, _ctx: ckpt.Context, _key: Any, _timer: ckpt.Timer) -> None:  # noqa: ANN401
        """It does not fire."""


def _play(spark: SparkSession, folder: Path, checkpoint: Path) -> dict[str, float]:
    """Count five rows of each of two keys more, twice in a chain; return the counters."""
    rows = spark.range(10).select((f.col("id") % 2).alias("k").cast("int"))
    rows.coalesce(1).write.mode("append").parquet(str(folder / "in"))
    frame = spark.readStream.schema("k int").parquet(str(folder / "in"))
    initial = spark.sql("SELECT 7 AS k, 700L AS total UNION ALL SELECT 1, 100L")
    for uid in ("first", "second"):
        given = initial if uid == "second" else None
        frame = ckpt.keyed(frame, "k", uid=uid).process(Count(), _COLUMNS, "append", initial_state=given)
    writer = frame.writeStream.format("parquet").option("path", str(folder / "out"))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    progress: Any = query.lastProgress
    metrics = [operator["customMetrics"] for operator in progress["stateOperators"]]
    return {name: each[name] for each in metrics for name in ("first/seen", "second/seen") if each.get(name)}


def _play_queries(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Run each of the other operators over two files; return its output and the state ``total``."""
    for first, second in ((100, 101), (120, 140)):
        rows = (f"SELECT timestamp_seconds({at}) AS at, {at % 2} AS k, {at - 99}L AS n" for at in (first, second))
        spark.sql(" UNION ALL ".join(rows)).coalesce(1).write.mode("append").parquet(str(folder / "timed"))
    stream = spark.readStream.schema(TIMED).option("maxFilesPerTrigger", "1").parquet(str(folder / "timed"))
    found = {}
    for name, frame in make_queries(spark, stream).items():
        out, checkpoint = str(folder / name / "out"), str(folder / name / "checkpoint")
        writer = frame.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
        if name == "idle":  # a run with availableNow knows of no silence after its start
            query = writer.outputMode("append").start()
            query.processAllAvailable()
            query.stop()
        else:
            writer.outputMode("append").trigger(availableNow=True).start().awaitTermination()
        states: list[Any] = []
        if name not in ("chain", "idle"):
            options = {"stateVarName": "total"} if name == "spark" else {"uid": "it", "state": "total"}
            stored = spark.read.format("statestore" if name == "spark" else "ckpt_state").options(**options)
            total = "value" if name == "with_states" else "value.n"
            states = stored.load(checkpoint).select("key.k", total).collect()
        output = spark.read.parquet(out).collect()
        found[name] = sorted(map(list, output)), sorted(map(list, states))
    return found


def _read_exported(registry: CollectorRegistry) -> dict[str, float]:
    """Return the sums of the counters, once the ends of both runs were told."""
    for _ in range(200):
        samples = [sample for metric in registry.collect() for sample in metric.samples]
        if sum(sample.value for sample in samples if sample.name == "ckpt_query_ends_total") == _RUNS:
            break
        time.sleep(0.05)
    sums: dict[str, float] = {}
    for sample in samples:
        if sample.name == "ckpt_user_counter_total":
            sums[sample.labels["uid"]] = sums.get(sample.labels["uid"], 0) + sample.value
    return sums


def main(folder: Path) -> None:
    """Run all of it."""
    port = find_free_port()
    DefaultChannelBuilder.default_port = staticmethod(lambda: port)  # type: ignore[method-assign]
    builder = SparkSession.builder.remote("local[2]").config("spark.connect.grpc.binding.port", str(port))
    for key, value in {**ckpt.session.spark_conf(python=sys.executable), **_SETTINGS}.items():
        builder = builder.config(key, value)
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    queries = _play_queries(spark, folder)
    registry = CollectorRegistry()
    exported = ckpt.monitoring.export_metrics(spark, prometheus=registry)
    counters = [_play(spark, folder, folder / "one") for _ in range(_RUNS)]
    sums = _read_exported(registry)
    exported.close()
    query = spark.readStream.format("rate").load().writeStream.format("noop")
    running = query.option("checkpointLocation", str(folder / "running")).start()
    try:
        ckpt.savepoint(running, str(folder / "refused"))
        refusal = ""
    except InvalidInputError as problem:
        refusal = str(problem)
    running.stop()
    taken = ckpt.savepoint(str(folder / "one"), str(folder / "taken"), digests=True)
    ckpt.restore(str(folder / "taken"), str(folder / "three"), parallelism=3)
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    counters.append(_play(spark, folder, folder / "three"))
    ckpt.restore(str(folder / "three"), str(folder / "four"), parallelism=4)
    states = {
        uid: spark.read.format("ckpt_state").options(uid=uid, state="total").load(str(folder / "four"))
        for uid in ("first", "second")
    }
    found = {
        "counters": counters,
        "refusal": refusal,
        "exported": sums,
        "left": len(list(registry.collect())),
        "queries": queries,
        "version": taken.version,
        "out": sorted([row.k, row.n] for row in spark.read.parquet(str(folder / "out")).collect()),
        "states": {
            uid: sorted([row.key.k, row.value] for row in state.select("key", "value").collect())
            for uid, state in states.items()
        },
    }
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
