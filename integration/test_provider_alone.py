"""A session that has the provider class and the jar, and nothing else that ``configure()`` sets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.state_store.format.names import PROVIDER_CLASS, PROVIDER_CONF

pytestmark = pytest.mark.spark

PROGRAM = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession

folder, jar, key, provider = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.jars", jar).config(key, provider)
spark = builder.config("spark.sql.shuffle.partitions", 2).config("spark.ui.enabled", "false").getOrCreate()
Path(folder, "input").mkdir()
Path(folder, "input", "1.txt").write_text("word\\nword\\n")
counts = spark.readStream.text(f"{folder}/input").groupBy("value").count()
query = counts.writeStream.outputMode("update").option("checkpointLocation", f"{folder}/checkpoint")
query.foreachBatch(lambda frame, _: print(frame.collect())).trigger(availableNow=True).start().awaitTermination()
"""


def test_a_query_says_once_what_it_lacks_when_only_the_provider_is_set(tmp_path: Path) -> None:
    arguments = [str(tmp_path), ckpt.jar_path(), PROVIDER_CONF, PROVIDER_CLASS]
    command = [sys.executable, "-c", PROGRAM, *arguments]
    own = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "count=2" in done.stdout
    assert done.stderr.count("nothing stops a driver that another one has replaced") == 1
    assert "Call pyspark_ckpt.configure(builder)" in done.stderr
