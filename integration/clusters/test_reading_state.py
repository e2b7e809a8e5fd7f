"""``ckpt_state`` where executors are processes of their own, in a session that knows nothing of this package."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from integration.clusters.conftest import SETTINGS
from integration.crash.driver import LOCAL_CLUSTER, ROOT
from pyspark_ckpt.reading import open_state
from tests.compat.frozen import unpack

_PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master(sys.argv[1])
for key, value in json.loads(sys.argv[2]).items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
frame = spark.read.format("ckpt_state").option("uid", "kinds").option("state", "names").load(sys.argv[3])
rows = frame.selectExpr("key.user", "index", "value", "partition").collect()
print(json.dumps([list(row) for row in rows]))
spark.stop()
"""


@pytest.mark.in_turn
@pytest.mark.cluster
def test_executors_read_a_partition_each(tmp_path: Path, user_environment: Mapping[str, str]) -> None:
    checkpoint = unpack("v1", "keyed", tmp_path / "checkpoint")
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, LOCAL_CLUSTER, json.dumps(SETTINGS), str(checkpoint)],
        cwd=tmp_path,
        env={**user_environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    with open_state(str(checkpoint), uid="kinds", state="names") as state:
        expected = [
            [row["key"]["user"], row["index"], row["value"], row["partition"]] for row in state.to_arrow().to_pylist()
        ]
    assert sorted(json.loads(done.stdout.splitlines()[-1])) == sorted(expected)
    assert {row[3] for row in expected} == {0, 1}
