"""Every way to start a session: the provider is found by the driver and by every executor, and keeps state."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

import pyspark_ckpt

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

SPARK_HOME = Path(pyspark.__file__).parent
ENVIRONMENT = {
    **os.environ,
    "SPARK_HOME": str(SPARK_HOME),
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
}
PROGRAM = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
import pyspark_ckpt

folder, master = Path(sys.argv[1]), sys.argv[2]
builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
builder = builder.config("spark.executor.memory", "512m").config("spark.jars", str(folder / "other.jar"))
if master != "submitted":
    builder = builder.master(master)
spark = pyspark_ckpt.configure(builder).getOrCreate()
counts = {}
lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "input"))
query = (
    lines.groupBy("value").count().writeStream.outputMode("update")
    .foreachBatch(lambda changed, _: counts.update(changed.collect()))
    .option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
)
query.awaitTermination()
print("counts", sorted(counts.items()))
print("batches", query.lastProgress["batchId"] + 1)
print("jars", sorted(jar.rpartition("/")[2] for jar in spark.conf.get("spark.jars").split(",")))
spark.stop()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program of a user, its input, and another jar that the user needs."""
    (tmp_path / "input").mkdir()
    for number in range(3):
        (tmp_path / "input" / f"{number}.txt").write_text("a\nb\n" * (number + 1))
    with (tmp_path / "other.jar").open("wb") as jar:
        jar.write(b"PK\x05\x06" + bytes(18))
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def run(program: Path, command: list[str], master: str) -> None:
    """Run the program and check what it says."""
    done = subprocess.run(
        [*command, str(program), str(program.parent), master],
        env=ENVIRONMENT,
        cwd=program.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert "counts [('a', 6), ('b', 6)]" in done.stdout
    assert "batches 3" in done.stdout
    assert "jars ['other.jar', 'pyspark-ckpt.jar']" in done.stdout
    assert list((program.parent / "checkpoint" / "state" / "0" / "0").glob("*.delta"))


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """A master and a worker in processes of their own; the master's URL."""
    command = [str(SPARK_HOME / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master"]
    master = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"],
        env=ENVIRONMENT, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert master.stderr is not None
        url = next(found[0] for line in master.stderr if (found := re.search(r"spark://127\.0\.0\.1:\d+", line)))
        command = [str(SPARK_HOME / "bin" / "spark-class"), "org.apache.spark.deploy.worker.Worker"]
        with (folder / "worker.log").open("w") as log:
            worker = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--cores", "2", "--memory", "1g", "--webui-port", "0",
                 "--work-dir", str(folder / "work"), url],
                env=ENVIRONMENT, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            yield url
        finally:
            worker.terminate()
            worker.wait(60)
    finally:
        master.terminate()
        master.communicate(timeout=60)


def test_state_is_kept_when_a_script_starts_local_spark(program: Path) -> None:
    run(program, [sys.executable], "local[*]")


def test_state_is_kept_when_executors_are_processes_of_their_own(program: Path) -> None:
    run(program, [sys.executable], "local-cluster[2,1,1024]")


def test_state_is_kept_when_spark_submit_starts_the_program(program: Path) -> None:
    run(program, [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]"], "submitted")


def test_state_is_kept_when_spark_submit_uses_a_standalone_cluster(program: Path, tmp_path: Path) -> None:
    with standalone_cluster(tmp_path) as url:
        run(program, [str(SPARK_HOME / "bin" / "spark-submit"), "--master", url], "submitted")


def test_configure_says_what_to_do_when_a_session_without_the_jar_runs() -> None:
    code = (
        "from pyspark.sql import SparkSession; import pyspark_ckpt\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "try:\n    pyspark_ckpt.configure(SparkSession.builder)\n"
        "except pyspark_ckpt.LifecycleError as error:\n    print('refused:', error)\n"
        "spark.stop()\n"
        "pyspark_ckpt.configure(SparkSession.builder)\n"
        "print('accepted')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False
    )
    assert f"--jars {pyspark_ckpt.jar_path()}" in done.stdout
    assert "accepted" in done.stdout
