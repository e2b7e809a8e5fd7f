"""The web page beside a query that runs."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest

import pyspark_ckpt as ckpt
from integration.savepoints.test_running import Sink, running

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def read(page: ckpt.WebPage, path: str) -> Any:  # noqa: ANN401 - JSON
    base, _, token = page.url.partition("/?token=")
    request = Request(f"{base}{path}?format=json", headers={"Authorization": f"Bearer {token}"})  # noqa: S310 - http
    with urlopen(request, timeout=60) as answer:  # noqa: S310
        return json.load(answer)


@pytest.mark.spark
def test_a_running_query_is_shown_with_what_it_measures(spark: SparkSession, tmp_path: Path) -> None:
    sink = Sink()
    with running(spark, tmp_path / "query", sink, 2) as query, ckpt.serve(query) as page:
        sink.await_batch(3)
        shown = read(page, "/c/0")
        while (shown["checkpoint"]["batch"] or 0) < 2:  # an answer is kept for some seconds
            assert query.isActive
            time.sleep(0.5)
            shown = read(page, "/c/0")
        assert shown["checkpoint"]["query_id"] == query.id
        assert shown["checkpoint"]["is_running"]
        sink.await_batch(shown["checkpoint"]["batch"] + 3)
        told = read(page, "/c/0/history")
        assert told["progress"][0]["batch"] > shown["checkpoint"]["batch"]
        assert told["progress"][0]["write_requests"] >= 1
        assert told["progress"][0]["uploaded_bytes"] > 0
        assert {each["commits"] for each in told["versions"][1:]} == {2}
