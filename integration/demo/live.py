"""``python -m integration.demo.live``: payments from topic to topic in real-time mode, their latency on the web page.

It needs Kafka and Spark's connector, which ``make demo-live`` fetches, and runs until Ctrl-C or for ``--seconds``.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark_ckpt as ckpt
from integration.bench.live.load import produce
from integration.jvm import JAVA_OPTIONS
from integration.kafka.service import running, session_jars
from integration.progress import stop_after_batches
from pyspark_ckpt.web.pace.batches import describe_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BATCH_S = 5
PARTITIONS = 2
OUTPUT = "card string, payments bigint, sent bigint"


class Payments(ckpt.KeyedProcessor):
    """Numbers the payments of a card."""

    payments = ckpt.ValueState("payments", "bigint", default=0)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        """Add the rows that have come since the last call."""
        number = self.payments.value()
        for row in rows:
            number += 1
            yield key.card, number, row.sent
        self.payments.update(number)


def main() -> int:
    """Run the demo."""
    arguments = _arguments()
    with (
        tempfile.TemporaryDirectory(prefix="pyspark-ckpt-live-") as name,
        running(Path(name) / "kafka", flags=()) as kafka,
        kafka.topic(PARTITIONS) as source,
        kafka.topic(PARTITIONS) as sink,
    ):
        spark = _session(Path(name))
        query = _start(spark, kafka.servers, source.name, sink.name, f"{name}/checkpoint")
        load = threading.Thread(
            target=produce, args=(kafka.servers, source.name, arguments.rate, arguments.seconds, 0), daemon=True
        )
        try:
            with closing(ckpt.monitoring.serve_web_page(query, port=arguments.port)) as page:
                print(f"{arguments.rate:,} payments/s. Their latency, on the page Progress: {page.url}", flush=True)
                load.start()
                with suppress(KeyboardInterrupt):
                    _follow(query, time.monotonic() + arguments.seconds)
        finally:
            stop_after_batches(query)
            spark.stop()
    return 0


def _session(folder: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[8]").appName("demo-live")
    settings = {
        "spark.jars": session_jars(),
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.streaming.stateStore.ckpt.localDir": str(folder / "local"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return ckpt.configure(builder, real_time=True).getOrCreate()


def _start(spark: SparkSession, servers: str, source: str, sink: str, checkpoint: str) -> StreamingQuery:
    from pyspark.sql import functions as f

    kafka = {"kafka.bootstrap.servers": servers}
    reader = spark.readStream.format("kafka").options(**kafka, subscribe=source, startingOffsets="earliest")
    parts = f.split(f.col("value").cast("string"), "\\|")
    payments = reader.load().select(parts[1].alias("card"), parts[2].cast("long").alias("sent"))
    out = ckpt.keyed(payments, "card", uid="payments").process(Payments(), OUTPUT, "update")
    value = f.concat_ws("|", "payments", "sent").alias("value")
    writer = out.select(f.col("card").alias("key"), value).writeStream.format("kafka").queryName("payments")
    writer = writer.options(**kafka, topic=sink, checkpointLocation=checkpoint).outputMode("update")
    return writer.trigger(realTime=f"{BATCH_S} seconds").start()  # type: ignore[call-overload,no-any-return]


def _follow(query: StreamingQuery, until: float) -> None:
    """Print the latency of each batch."""
    shown = -1
    while time.monotonic() < until:
        if query.exception() is not None:
            raise RuntimeError(str(query.exception()))
        for progress in query.recentProgress:
            batch = describe_batch(progress)
            if batch["batch"] > shown and batch["latency_p50_ms"] is not None:
                shown = batch["batch"]
                print(
                    f"batch {shown}: {batch['input_rows']:,} payments, half of them within "
                    f"{batch['latency_p50_ms']:.0f} ms, 99 of 100 within {batch['latency_p99_ms']:.0f} ms",
                    flush=True,
                )
        time.sleep(0.5)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=500, help="payments a second")
    parser.add_argument("--seconds", type=float, default=3600, help="how long to run")
    parser.add_argument("--port", type=int, default=0, help="of the web page; 0 for any free one")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
