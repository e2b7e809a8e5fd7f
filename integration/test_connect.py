"""A program in a Spark Connect client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from integration.short import has

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.in_turn
def test_operators_and_savepoints_work_in_a_connect_client(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "integration.connect_program", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stderr[-5000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["counters"] == [{"first/seen": 10, "second/seen": 2}] * 3
    assert found["exported"] == {"first": 20, "second": 4}
    assert found["left"] == 0
    assert "A Spark Connect client does not know the checkpointLocation" in found["refusal"]
    assert found["version"] == 2
    assert found["out"] == [[0, 1], [0, 2], [0, 3], [1, 101], [1, 102], [1, 103]]
    totals = [[[0, 1], [0, 3], [1, 101]], [[0, 3], [1, 101]]]
    assert found["queries"] == {
        **{name: [[[0, 1], [0, 21], [1, 2]], []] for name in ("chain", "idle")},
        "with_states": [[[0, 1], [0, 3], [1, 1]], [[0, 3], [1, 1]]],
        **dict.fromkeys(("rows", "frames", "spark") if has("4.1") else ("frames",), totals),
    }
    assert found["states"] == {"first": [[0, 15], [1, 15]], "second": [[0, 3], [1, 103], [7, 700]]}


_UNCLOSED = """
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession
from pyspark.sql.connect.client import DefaultChannelBuilder
import pyspark_ckpt as ckpt
from tests.services.ports import find_free_port

port = find_free_port()
DefaultChannelBuilder.default_port = staticmethod(lambda: port)
builder = SparkSession.builder.remote("local[1]").config("spark.connect.grpc.binding.port", str(port))
builder = builder.config("spark.connect.grpc.binding.address", "127.0.0.1").config("spark.ui.enabled", "false")
exported = ckpt.monitoring.export_metrics(builder.getOrCreate(), prometheus=CollectorRegistry())
print("at its end", flush=True)
"""


def test_a_program_in_a_connect_client_ends_although_its_metrics_are_not_closed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _UNCLOSED],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert (done.returncode, done.stdout) == (0, "at its end\n"), done.stderr[-5000:]
