"""The web page beside a query that runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest

import pyspark_ckpt as ckpt
from integration.savepoints.test_running import Sink, running

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def read(page: ckpt.monitoring.WebPage, path: str) -> Any:  # noqa: ANN401 - JSON
    base, _, token = page.url.partition("/?token=")
    request = Request(f"{base}{path}?format=json", headers={"Authorization": f"Bearer {token}"})  # noqa: S310 - http
    with urlopen(request, timeout=60) as answer:  # noqa: S310
        return json.load(answer)


@pytest.mark.spark
def test_a_running_query_is_shown_with_what_it_measures(spark: SparkSession, tmp_path: Path) -> None:
    sink = Sink()
    with running(spark, tmp_path / "query", sink, 2) as query, ckpt.monitoring.serve_web_page(query) as page:
        sink.await_batch(3)
        shown = read(page, "/c/0")
        while (shown["checkpoint"]["batch"] or 0) < 2:  # an answer is kept for some seconds
            assert query.isActive
            time.sleep(0.5)
            shown = read(page, "/c/0")
        assert shown["checkpoint"]["query_id"] == query.id
        assert shown["checkpoint"]["is_running"]
        sink.await_batch(shown["checkpoint"]["batch"] + 3)
        told = read(page, "/c/0/progress")
        assert told["source"] == "query"
        assert told["progress"][0]["batch"] > shown["checkpoint"]["batch"]
        assert told["progress"][0]["write_requests"] >= 1
        assert told["progress"][0]["expired_rows_left"] == 0
        assert told["progress"][0]["uploaded_bytes"] > 0
        assert told["newest"]["processed_rows_per_s"] > 0
        assert {"addBatch", "walCommit"} <= {each["phase"] for each in told["phases"]}
        assert told["sizes"][0]["state_rows"] > 0
        assert told["verdict"]["why"] != "no batch with rows has run yet"
        assert told["verdict"]["busy_share"] is not None
        told = read(page, "/c/0/history")
        # Commits of the newest version may come, and those of the oldest go, while they are counted.
        assert max(each["commits"] for each in told["versions"]) == 2


PROGRAM = """
import json
import signal
import sys
import time
from urllib.request import Request, urlopen

from pyspark import SparkContext
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt


def read(path):
    base, _, token = page.url.partition("/?token=")
    request = Request(f"{base}{path}?format=json", headers={"Authorization": f"Bearer {token}"})
    with urlopen(request, timeout=60) as answer:
        return json.load(answer)


builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
spark = ckpt.configure(builder.config("spark.sql.shuffle.partitions", "2")).getOrCreate()
rows = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
writer = rows.groupBy("value").count().writeStream.outputMode("update").format("noop")
query = writer.option("checkpointLocation", sys.argv[1]).start()
while not query.lastProgress or query.lastProgress["batchId"] < 1:
    assert query.isActive, query.exception()
    time.sleep(0.2)
with ckpt.monitoring.serve_web_page(query) as page:
    assert read("/c/0")["checkpoint"]["is_running"]
    process = SparkContext._gateway.proc
    process.send_signal(signal.SIGSTOP)
    began_s = time.monotonic()
    told = read("/c/0")["checkpoint"]
    while not told["health"][0]["text"].endswith("its session has not answered yet"):
        assert time.monotonic() - began_s < 60, told
        time.sleep(0.5)
        told = read("/c/0")["checkpoint"]
    for path in ("/", "/c/0/history", "/c/0/states"):
        read(path)
    process.kill()
    process.wait()
    while not told["health"][0]["text"].startswith("the query in this process: its session does not answer"):
        assert time.monotonic() - began_s < 120, told
        time.sleep(0.5)
        told = read("/c/0")["checkpoint"]
    assert (told["is_running"], told["level"]) == (False, "bad"), told
    assert told["batch"] >= 1
    for path in ("", "/progress", "/history", "/states", "/partitions", "/kept", "/key", "/diff"):
        read("/c/0" + path)
    read("/")
print("all read")
"""


def test_the_page_outlives_the_jvm_of_its_query(tmp_path: Path) -> None:
    """Somebody looks at it because the driver's JVM has died."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "query")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "all read" in done.stdout, done.stderr[-3000:]
