"""A program whose sessions end before the export of their metrics does: one is stopped, the JVM of the next is killed.

``python -m integration.export_program FOLDER`` prints what it has seen as JSON, in the last line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import pyspark_ckpt as ckpt

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
}
_SHOWN = ("ckpt_query_running", "ckpt_query_ends_total", "ckpt_state_rows", "ckpt_exporter_failures_total")


def _make_session() -> SparkSession:
    """Return a session that has neither the store nor the jar."""
    builder = SparkSession.builder.master("local[2]")
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _start(spark: SparkSession, name: str, folder: Path) -> StreamingQuery:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    counts = rows.groupBy((f.col("value") % 10).alias("digit")).count()
    writer = counts.writeStream.outputMode("update").format("noop").queryName(name)
    return writer.option("checkpointLocation", str(folder / name)).start()


def _read(url: str | None) -> dict[str, float]:
    text = urlopen(url or "", timeout=10).read().decode()  # noqa: S310 - a server of this program
    return {
        " ".join(filter(None, (sample.name, sample.labels.get("query")))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in _SHOWN
    }


def _await(read: Callable[[], object]) -> None:
    for _ in range(600):
        if read():
            return
        time.sleep(0.05)
    raise AssertionError("not in 30 s")


def main(folder: Path) -> None:
    """Run all of it."""
    spark = _make_session()
    exported = ckpt.monitoring.export_metrics(spark, prometheus=0)
    url = exported.url
    _start(spark, "first", folder)
    _await(lambda: "ckpt_state_rows first" in _read(url))
    found: dict[str, Any] = {"running": _read(url)}
    spark.stop()
    found["stopped"] = _read(url)
    try:
        exported.follow(spark)
    except ckpt.LifecycleError as problem:
        found["refused"] = str(problem)

    spark = ckpt.attach(_make_session())
    exported.follow(spark)
    _start(spark, "second", folder)
    _await(lambda: "ckpt_state_rows second" in _read(url))
    found["attached"] = _read(url)
    jvm: Any = spark._jvm
    pid = int(jvm.java.lang.ProcessHandle.current().pid())
    os.kill(pid, signal.SIGKILL)
    exported.close()
    try:
        _read(url)
    except URLError as problem:
        found["closed"] = str(problem.reason)
    print(json.dumps(found), flush=True)
    os._exit(0)  # PySpark would wait for the JVM


if __name__ == "__main__":
    main(Path(sys.argv[1]))
