"""Functions of changes run in the tasks of a Spark job: the result is that of one process, also if workers die."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from integration.savepoints import changes_program
from integration.savepoints.changes_program import ITEMS, KEY, UID, N, describe, list_changes
from pyspark_ckpt import writing
from pyspark_ckpt.writing import write_state

pytestmark = pytest.mark.spark

PROGRAM = Path(changes_program.__file__)
COUNT = 3000
CLUSTER = "local-cluster[2,1,1024]"


def _run(master: str, dies: str, folder: Path) -> dict[str, Any]:
    """Run the program in a process and a JVM of its own; return what it shows."""
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    done = subprocess.run(
        [sys.executable, "-m", "integration.savepoints.changes_program", master, dies, str(folder)],
        env={**surroundings, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        cwd=PROGRAM.parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    shown: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return shown


def _digests(described: Any) -> list[Any]:  # noqa: ANN401
    return [each[:2] for each in described]


def _save(folder: Path) -> None:
    """Write the savepoint that the program changes."""
    users = [f"u{n}" for n in range(COUNT)]
    rows = pa.table({"user": users, "value": list(range(COUNT))})
    lists = pa.table({"user": users, "index": [0] * COUNT, "value": ["x"] * COUNT})
    put = [writing.Put(UID, N, rows, key=KEY), writing.Put(UID, ITEMS, lists)]
    write_state(None, folder / "saved", put, parallelism=4)


@pytest.mark.parametrize(
    ("master", "dies"),
    [
        ("local[2]", "stays"),
        pytest.param("local[2]", "dies", marks=pytest.mark.kill),
        pytest.param("local[2, 4]", "dies", marks=pytest.mark.kill),
        pytest.param(CLUSTER, "dies", marks=[pytest.mark.cluster, pytest.mark.kill]),
    ],
)
def test_it_is_the_same_in_a_job(master: str, dies: str, tmp_path: Path) -> None:
    _save(tmp_path)
    (tmp_path / "here").mkdir()
    given = list_changes(tmp_path / "here", dies=False)
    here = json.loads(json.dumps(describe(write_state(tmp_path / "saved", tmp_path / "written here", given))))
    shown = _run(master, dies, tmp_path)
    if (master, dies) == ("local[2]", "dies"):  # Spark does not repeat tasks there
        assert "written" not in shown
        assert "Python worker exited unexpectedly" in shown["problem"]
        assert not (tmp_path / "written" / "savepoint.json").exists()
    else:
        assert shown["written"] == here
        assert (tmp_path / "transform").exists()
        assert (tmp_path / "rekey").exists()
    assert "raise BadRowError" in shown["raised"]
    assert shown["raised"].count("in fail") == 1
    assert shown["raised"].splitlines()[-2].startswith("BadRowError: ")
    assert shown["raised"].splitlines()[-1].startswith("An unfinished savepoint is left. ")
    assert not (tmp_path / "failed" / "savepoint.json").exists()
    users = [f"u{n}" for n in range(COUNT)]
    put = writing.Put(UID, N, pa.table({"user": users, "value": list(range(COUNT))}), KEY)
    expected = json.loads(json.dumps(describe(write_state(None, tmp_path / "put here", [put], parallelism=3))))
    assert _digests(shown["put"]) == _digests(expected)
    assert _digests(shown["changed"]) == _digests(
        json.loads(json.dumps(describe(write_state(None, tmp_path / "changed here", [put, *given], parallelism=3))))
    )
    assert shown["told"] == [COUNT // 2, ["value", "partition", "key_group", "hash", "user"], 2]
    for name in ("raised by write_state", "raised by dry_run"):
        assert "bad rows" in shown[name]
        assert "in fail" in shown[name]
    assert shown["twice"].startswith("InvalidInputError: ")
    assert "some have the same key" in shown["twice"]
    assert shown["bad"].startswith("InvalidInputError: State 'u/n': ")
