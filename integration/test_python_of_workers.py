"""The interpreter that a plain script names on the builder is that of the state server and of Python workers."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from integration.jvm import JAVA_OPTIONS

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import os, sys
from pyspark.sql import SparkSession, functions as f
import pyspark_ckpt

builder = SparkSession.builder.master("local[1]").config("spark.pyspark.python", sys.argv[1])
builder = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1")
spark = pyspark_ckpt.configure(builder).getOrCreate()
named = spark.range(1).select(f.udf(lambda _: os.environ.get("NAMED_PYTHON"), "string")("id")).first()[0]
spark.range(3).write.parquet(sys.argv[2] + "/in")
rows = spark.readStream.schema("id long").parquet(sys.argv[2] + "/in").groupBy("id").count()
query = rows.writeStream.format("noop").outputMode("update").option("checkpointLocation", sys.argv[2] + "/ck")
query = query.trigger(availableNow=True).start()
query.awaitTermination()
print("workers:", named, "state:", query.lastProgress["stateOperators"][0]["numRowsTotal"])
"""


@pytest.mark.in_turn
@pytest.mark.spark
def test_the_interpreter_of_the_builder_is_that_of_workers_and_of_the_state_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told apart from this one by a variable, and it leaves a mark for each process of the state server."""
    named = tmp_path / "named-python"
    named.write_text(
        "#!/bin/sh\nNAMED_PYTHON=yes\nexport NAMED_PYTHON\n"
        f'case "$*" in *state_store*) touch {tmp_path}/server;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    named.chmod(0o700)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("JDK_JAVA_OPTIONS", JAVA_OPTIONS)
    command = [sys.executable, "-c", SCRIPT, str(named), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "workers: yes state: 3" in done.stdout, done.stderr[-3000:]
    assert (tmp_path / "server").exists()
