"""A session that has the provider class and the jar, and nothing else that ``configure()`` sets."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import chain
from typing import TYPE_CHECKING

import pytest

import pyspark_ckpt as ckpt
from integration.short import has
from pyspark_ckpt.session import CHECKPOINT_FORMAT, FILES
from pyspark_ckpt.state_store.format.names import PROVIDER_CLASS, PROVIDER_CONF

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark

PROGRAM = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession

folder, version, files, log_files, *confs = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.sql.shuffle.partitions", 2)
for key, value in zip(confs[::2], confs[1::2]):
    builder = builder.config(key, value)
spark = builder.getOrCreate()
Path(folder, "input").mkdir()

def run(session, checkpoint, stateful=True):
    number = len(list(Path(folder, "input").iterdir()))
    Path(folder, "input", f"{number}.txt").write_text("word\\nword\\n")
    rows = session.readStream.text(f"{folder}/input")
    rows = rows.groupBy("value").count() if stateful else rows
    writer = rows.writeStream.outputMode("update").option("checkpointLocation", f"{folder}/{checkpoint}")
    writer = writer.foreachBatch(lambda frame, _: print(checkpoint, frame.collect()))
    writer.trigger(availableNow=True).start().awaitTermination()

run(spark, "first")
run(spark, "first")
run(spark, "stateless", stateful=False)
fenced = spark.newSession()
fenced.conf.set(files, log_files)
run(fenced, "fenced")
numbered = spark.newSession()
numbered.conf.set(version, 1)
run(numbered, "numbered")
print("default format", spark.conf.get(version))
"""


def _run(folder: Path) -> subprocess.CompletedProcess[str]:
    given = {"spark.jars": ckpt.session.jar_path(), PROVIDER_CONF: PROVIDER_CLASS}
    arguments = [CHECKPOINT_FORMAT, FILES, ckpt.session.spark_conf()[FILES], *chain.from_iterable(given.items())]
    command = [sys.executable, "-c", PROGRAM, str(folder), *arguments]
    own = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not has("4.0"), reason="Spark 3.5 does not find the extensions of a jar")
def test_a_query_says_once_what_it_lacks_when_only_the_provider_is_set(tmp_path: Path) -> None:
    done = _run(tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "first [Row(value='word', count=4)]" in done.stdout
    assert "default format 1" in done.stdout
    first, numbered = (line for line in done.stderr.splitlines() if "runs without a fence of Spark's logs" in line)
    assert f"lacks {FILES} and {CHECKPOINT_FORMAT} (so it has format 1). " in first
    assert f"lacks {FILES}. " in numbered
    assert all(line.endswith("pyspark_ckpt.configure(builder) sets all confs.") for line in (first, numbered))


@pytest.mark.skipif(has("4.0"), reason="later releases find the extensions of a jar")
def test_a_query_commits_nothing_when_its_session_lacks_the_extensions(tmp_path: Path) -> None:
    done = _run(tmp_path)
    assert done.returncode != 0
    assert "its session does not have the extensions of the jar" in " ".join(done.stderr.split())
    assert not list((tmp_path / "first" / "commits").glob("0"))
