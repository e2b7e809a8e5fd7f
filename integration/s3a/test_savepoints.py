"""Savepoints of a checkpoint in s3a: reach it as S3A does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from integration.crash.driver import ROOT
from pyspark_ckpt.session import jar_path
from tests.services.s3_server import S3Service, hide_credentials

pytestmark = [pytest.mark.spark, pytest.mark.matrix]


def test_a_query_in_s3a_goes_on_from_a_savepoint_with_more_partitions(
    s3: S3Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = s3.new_folder().replace("s3:", "s3a:", 1)
    last = run("rescaled", [root, str(tmp_path)], s3, tmp_path, monkeypatch)
    assert json.loads(last) == [[key, 2] for key in range(20)]


def test_a_running_query_in_s3a_is_rescaled_from_a_thread(
    s3: S3Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = s3.new_folder().replace("s3:", "s3a:", 1)
    told, sums = json.loads(run("rescaled_query", [root], s3, tmp_path, monkeypatch))
    assert len(told) == 2
    assert f"made-up mistake. It was started again on {root}/query, with 2 partitions." in told[0]
    assert told[1] == f"{root}/query-3-partitions"
    assert sums == [20 * (batch + 1) for batch in range(len(sums))]


def run(program: str, arguments: list[str], s3: S3Service, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a program that has S3A's settings and no other credentials. Return the last line that it prints."""
    jars = sorted((ROOT / ".tools" / "s3a").glob("*.jar"))
    if not jars:
        pytest.skip("NOT RUN: needs Hadoop's S3A, which `make .tools/s3a/.ready` fetches where there is Maven.")
    settings = {f"spark.hadoop.{key}": value for key, value in {**s3.s3a, **s3.s3a_keys}.items()}
    settings |= {
        "spark.jars": ",".join([jar_path(), *map(str, jars)]),
        "spark.ui.enabled": "false",
    }
    hide_credentials(monkeypatch, folder)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    command = [sys.executable, "-m", f"integration.s3a.{program}", *arguments, json.dumps(settings)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()[-1]
