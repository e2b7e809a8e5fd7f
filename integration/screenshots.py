"""Pictures of the web page for docs/web-page.md: ``python -m integration.screenshots [CHROMIUM]``.

A query with a keyed operator runs for a minute, and a browser looks at it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import sync_playwright
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {"progress": "/c/0/progress", "partitions": "/c/0/partitions"}
WIDTH, HEIGHT = 1100, 760
BATCHES = 30


class Visits(ckpt.KeyedProcessor):
    """Counts the visits of a user, who is forgotten after an hour without one."""

    visits: Any = ckpt.ValueState("visits", "long", ttl=ckpt.Ttl("1 hour"))

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401
        """Yield how many there have been."""
        count = (self.visits.value() or 0) + len(rows)
        self.visits.update(count)
        yield key.user, count


def main(chromium: str | None) -> None:
    """Run the query, and write one picture for each page."""
    folder = Path(tempfile.mkdtemp(prefix="pyspark-ckpt-page-"))
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = ckpt.configure(builder.config("spark.sql.shuffle.partitions", "8")).getOrCreate()
    try:
        query = _start(spark, folder / "checkpoints" / "visits")
        while (query.lastProgress or {"batchId": 0})["batchId"] < BATCHES:
            query.awaitTermination(1)
        with ckpt.monitoring.serve_web_page(query) as page:
            _take(page.url, chromium)
        query.stop()
    finally:
        spark.stop()
        shutil.rmtree(folder)


def _start(spark: SparkSession, checkpoint: Path) -> StreamingQuery:
    rows = spark.readStream.format("rate").option("rowsPerSecond", 2000).load()
    rows = rows.selectExpr("concat('user-', value % 5000) as user", "timestamp as at")
    counted: DataFrame = ckpt.keyed(rows, "user", uid="visits").process(Visits(), output="user string, visits long")
    writer = counted.writeStream.queryName("visits").outputMode("update").format("noop")
    return writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="2 seconds").start()


def _take(url: str, chromium: str | None) -> None:
    base = url.partition("/?")[0]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--no-proxy-server"])
        page = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}).new_page()
        page.goto(url)
        for name, path in PAGES.items():
            page.goto(f"{base}{path}")
            time.sleep(6)  # until it has refreshed itself
            page.screenshot(path=DOCS / f"web-page-{name}.png")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else shutil.which("chromium"))
