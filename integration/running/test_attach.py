"""A session that runs already gets the store: all of it, or nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyspark_ckpt as ckpt
from integration.running import attach_program
from pyspark_ckpt.state_store.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PROGRAM = Path(attach_program.__file__)
SHOWN = {
    "sums": [[["a", 4], ["b", 2]], 2, 1],
    "keyed": [[["a", 2], ["b", 1]], 2, 1],
    "by SQL": [[["a", 4], ["b", 3]], 2, 1],
}


def run(folder: Path, master: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a process and a JVM of its own."""
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    return subprocess.run(
        [sys.executable, "-m", "integration.running.attach_program", master, str(folder)],
        env={**surroundings, "SPARK_LOCAL_IP": "127.0.0.1", **variables},
        cwd=PROGRAM.parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.mark.parametrize(
    "master", ["local[2]", pytest.param("local-cluster[2,1,1024]", marks=[pytest.mark.cluster, pytest.mark.in_turn])]
)
def test_a_session_that_runs_gets_the_store(master: str, tmp_path: Path) -> None:
    variables = {} if master == "local[2]" else {"PYSPARK_PYTHON": sys.executable}
    done = run(tmp_path / "run", master, **variables)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert json.loads(line.removeprefix("RESULT ")) == SHOWN


@pytest.mark.in_turn
def test_a_session_whose_executors_lack_the_package_stays_as_it_was(tmp_path: Path) -> None:
    python = Path("/usr/bin/python3")
    if not python.exists():
        pytest.skip(f"there is no {python}, which must lack the package")
    done = run(tmp_path / "run", "local[1]", PYSPARK_PYTHON=str(python), PYSPARK_DRIVER_PYTHON=sys.executable)
    assert done.returncode == 1
    assert "The session was not given the store, and is as it was." in done.stderr
    assert f"{PROVIDER} org.apache.spark.sql.ckpt.CkptStateStoreProvider" in done.stderr


def test_a_bad_option_leaves_a_session_as_it_was(spark: SparkSession) -> None:
    session = spark.newSession()
    before = session.conf.get(PROVIDER)
    with pytest.raises(InvalidInputError, match=r"There is no option .*memoryLimt"):
        ckpt.attach(session, memory_limt="1g")
    assert session.conf.get(PROVIDER) == before
    ckpt.attach(session, memory_limit="1g")
    assert session.conf.get(PROVIDER) == ckpt.session.PROVIDER_CLASS
    assert session.conf.get("spark.sql.streaming.stateStore.ckpt.memoryLimit") == "1g"
    assert ckpt.attach(session).conf.get("spark.sql.streaming.stateStore.ckpt.memoryLimit") == "1g"


def test_what_is_no_classic_session_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"needs a classic Spark session in this process, got builtins.str"):
        ckpt.attach("spark")  # type: ignore[arg-type]
