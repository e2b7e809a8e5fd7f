"""A user's folder, and programs that run in it and leave nothing behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from integration.crash.driver import environment
from integration.jvm import JAVA_OPTIONS
from pyspark_ckpt.testing.crashes.processes import kill_marked

PROGRAM = Path(__file__).with_name("counts.py")
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}

OTHER_JAR = "other.jar"  # another one that the user needs
EMPTY_ZIP = b"PK\x05\x06" + bytes(18)

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def user_environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment of a user who has installed the package; every process that has it ends with the test."""
    mark = uuid.uuid4().hex
    (tmp_path / "temporary").mkdir()
    made = environment(tmp_path, mark)
    del made["PYTHONPATH"]
    yield made
    kill_marked(mark)
    shutil.rmtree(tmp_path / "temporary", ignore_errors=True)


@pytest.fixture
def run(tmp_path: Path, user_environment: Mapping[str, str]) -> Run:
    """``run(master, runs, with_submit)`` runs the program, and returns what it says."""

    def program(master: str, runs: int = 1, *, with_submit: bool = False) -> dict[str, Any]:
        other = tmp_path / OTHER_JAR
        other.write_bytes(EMPTY_ZIP)
        settings = {**SETTINGS, "spark.jars": str(other)}
        (tmp_path / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        submit = [f"{user_environment['SPARK_HOME']}/bin/spark-submit", "--master", master]
        start = submit if with_submit else [sys.executable]
        done = subprocess.run(
            [*start, str(PROGRAM), str(tmp_path), "-" if with_submit else master, str(runs)],
            cwd=tmp_path,
            env=dict(user_environment),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-6000:]
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return said

    return program
