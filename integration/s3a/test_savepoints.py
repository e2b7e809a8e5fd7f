"""Savepoints of a checkpoint in s3a: reach it as S3A does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import pyspark_ckpt
from integration.crash.driver import ROOT
from tests.s3_server import S3Service, hide_credentials

pytestmark = [pytest.mark.spark, pytest.mark.matrix]


def test_a_query_in_s3a_goes_on_from_a_savepoint_with_more_partitions(
    s3: S3Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = sorted((ROOT / ".tools" / "s3a").glob("*.jar"))
    if not jars:
        pytest.skip("NOT RUN: needs Hadoop's S3A, which `make .tools/s3a/.ready` fetches where there is Maven.")
    settings = {f"spark.hadoop.{key}": value for key, value in {**s3.s3a, **s3.s3a_keys}.items()}
    settings |= {"spark.jars": ",".join([pyspark_ckpt.jar_path(), *map(str, jars)]), "spark.ui.enabled": "false"}
    hide_credentials(monkeypatch, tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    root = s3.new_folder().replace("s3:", "s3a:", 1)
    command = [sys.executable, "-m", "integration.s3a.rescaled", root, str(tmp_path), json.dumps(settings)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [[key, 2] for key in range(20)]
