"""What a running session shows of secrets: nothing, in its confs, its properties, its processes and its checkpoint."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.compat.queries import CASES, run_batch
from tests.services.s3_server import CREDENTIALS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_no_secret_is_in_confs_arguments_or_the_checkpoint_when_a_query_has_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert run_batch(spark, CASES["aggregation"], str(tmp_path / "checkpoint"))
    jvm = spark._jvm
    assert jvm is not None
    machine = psutil.Process(jvm.java.lang.ProcessHandle.current().pid())
    alive = [each for each in machine.children() if each.status() != psutil.STATUS_ZOMBIE]
    servers = [each for each in alive if "pyspark_ckpt.state_store.server" in each.cmdline()]
    assert servers
    for server in servers:
        assert server.cmdline()[3:] == ["pyspark_ckpt.state_store.server"]
        assert server.environ() == machine.environ(), "nothing is told by the environment"
        (lock,) = (Path(each.path) for each in server.open_files() if each.path.endswith("server.lock"))
        assert stat.S_IMODE(lock.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(lock.parent.parent.stat().st_mode) == 0o700
    shown = [
        *(text for pair in spark.sparkContext.getConf().getAll() for text in pair),
        *(str(row) for row in spark.sql("SET -v").collect()),
        str(jvm.java.lang.System.getProperties()),
        *(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()),
        *machine.cmdline(),
    ]
    secret = CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == secret, "it is where boto3 finds it"
    assert [text for text in shown if secret in text] == []
