"""A program whose log and whose page in Spark's UI are looked at: a keyed query that spills, and is restored.

``python -m integration.monitoring_program FOLDER`` prints what it has seen as JSON, in the last line. Its log, from
INFO up, goes to stderr.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import psutil
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt
from integration.jvm import JAVA_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.streaming.query import StreamingQuery

_SHOWN = ("ckptUploadTimeMs", "ckptDeltaBytes", "ckptLateRows")
_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.port": "0",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
    "spark.sql.streaming.ui.enabledCustomMetricList": ",".join(_SHOWN),
}


_LOG = """
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n
logger.repl.name = org.apache.spark.api.python.PythonGatewayServer
logger.repl.level = info
"""
"""Python is an interpreter for Spark, in which it shows no more than this last logger."""


class Texts(ckpt.KeyedProcessor):
    """Keeps more than fits in a worker's memory."""

    texts = ckpt.MapState("texts", "bigint", "string")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        for row in rows:
            self.texts.put(row.value, "a long text" * 8192)
        yield key.user, len(rows)


def _start(spark: SparkSession, folder: Path, rows: int) -> StreamingQuery:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).load()
    users = source.withColumn("user", (f.col("value") % 8).cast("int"))
    keyed = ckpt.keyed(users, by="user", uid="texts").process(Texts(), output="user int, rows bigint", mode="update")
    writer = keyed.writeStream.outputMode("update").format("noop").queryName("the\nsite")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def _await_batch(query: StreamingQuery, batches: int) -> None:
    while len(query.recentProgress) < batches:
        query.awaitTermination(1)


def _lose_local_state() -> None:
    """Kill the state server, with the processes it has forked, and delete its files: so the next batch restores."""
    folders: set[Path] = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # workers come and go
            if process.status() != psutil.STATUS_ZOMBIE and "pyspark_ckpt.state_store.server" in process.cmdline():
                files = [Path(each.path) for each in process.open_files()]
                folders |= {file.parent.parent for file in files if file.name == "server.lock"}
                process.kill()
                process.wait()
    assert folders
    for folder in folders:
        shutil.rmtree(folder)


def main(folder: Path) -> None:
    """Run all of it."""
    log = folder / "log4j2.properties"
    log.write_text(_LOG, encoding="utf-8")
    builder = ckpt.configure(SparkSession.builder.master("local[2]"), worker_memory="16m", restore_target="90s")
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    options = f"{JAVA_OPTIONS} -Dlog4j2.configurationFile={log.as_uri()}"
    spark = builder.config("spark.driver.extraJavaOptions", options).getOrCreate()
    query = _start(spark, folder, 400)
    _await_batch(query, 2)
    page = f"{spark.sparkContext.uiWebUrl}/StreamingQuery/statistics/?id={query.runId}"
    with urlopen(page, timeout=20) as answer:  # noqa: S310 - Spark's own UI
        html = answer.read().decode()
    query.stop()
    _lose_local_state()
    again = _start(spark, folder, 400)
    _await_batch(again, 1)
    again.stop()
    stateless = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load().writeStream.format("noop")
    other = stateless.option("checkpointLocation", str(folder / "stateless")).queryName("stateless").start()
    _await_batch(other, 1)
    other.stop()
    time.sleep(1)
    spills = [
        operator["customMetrics"]["ckptSpilledRuns"]
        for progress in (*query.recentProgress, *again.recentProgress)
        for operator in progress["stateOperators"]
    ]
    found = {
        "runs": [str(query.runId), str(again.runId)],
        "spills": spills,
        "shown": [name for name in _SHOWN if f"aggregated-{name}-timeline" in html],
    }
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
