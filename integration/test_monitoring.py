"""What the log says of a query, and what Spark's UI shows of its metrics."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.version import __version__ as spark_version

import pyspark_ckpt as ckpt

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str], Path]:
    """What the program has seen, the lines of its log, and its folder."""
    folder = tmp_path_factory.mktemp("monitoring")
    found, log = _play("monitoring_program", folder)
    return found, [line for line in log.splitlines() if re.match(r"\d\d/\d\d/\d\d ", line)], folder


def _play(program: str, folder: Path) -> tuple[dict[str, Any], str]:
    """Run a program of this folder; return what it has seen, and its log."""
    done = subprocess.run(
        [sys.executable, "-m", f"integration.{program}", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def _with(lines: list[str], text: str) -> list[str]:
    return [line for line in lines if text in line]


@pytest.mark.spark
def test_each_run_of_a_query_says_once_where_and_how_it_keeps_its_state(played: Any) -> None:  # noqa: ANN401
    found, lines, folder = played
    told = _with(lines, "keeps its state with")
    assert len(told) == 2
    for line, run in zip(told, found["runs"], strict=True):
        assert " INFO " in line
        assert "Query the site (id " in line
        assert f"run {run}) keeps its state with pyspark-ckpt {ckpt.__version__} on Spark {spark_version} in " in line
        assert f"{folder}/checkpoint/state: checkpoint format" in line
        assert "restoreTarget=90s" in line
        assert "compression" not in line, "it has its default"


@pytest.mark.spark
def test_each_restore_is_one_line(played: Any) -> None:  # noqa: ANN401
    _, lines, _ = played
    restored = _with(lines, " restored from ")
    stores = [re.findall(r"\[(0/\d/\w+)\]", line)[0] for line in restored]
    assert sorted(stores) == ["0/0/default", "0/1/default"]
    assert _with(lines, "restoring from") == []


@pytest.mark.spark
def test_each_spill_is_one_line_and_in_the_metrics(played: Any) -> None:  # noqa: ANN401
    found, lines, _ = played
    spilled = [int(re.findall(r"memory: (\d+) spills", line)[0]) for line in _with(lines, "spills to local disk")]
    assert min(found["spills"]) > 0
    assert sum(spilled) >= sum(found["spills"]), "the log may have a batch more than the progress"
    assert len(_with(lines, "version 1 did not fit in memory")) == 2, "one for each store"


@pytest.mark.spark
def test_no_line_of_ours_comes_twice(played: Any) -> None:  # noqa: ANN401
    _, lines, _ = played
    own = [line.split(maxsplit=3)[3] for line in _with(lines, "ckpt") + _with(lines, "[0/")]
    ours = [line for line in own if "StateServer" in line or "[0/" in line]
    said = [line for line in ours if "published" not in line]
    assert sorted(set(said)) == sorted(said)
    assert len(_with(lines, "runs as pid")) == 2
    assert _with(lines, "listens on port") == []


@pytest.mark.spark
def test_sparks_ui_shows_the_metrics_that_a_session_names(played: Any) -> None:  # noqa: ANN401
    found, _, _ = played
    assert found["shown"] == ["ckptUploadTimeMs", "ckptDeltaBytes", "ckptLateRows"]


@pytest.mark.spark
def test_an_export_outlives_its_sessions_and_is_closed_without_them(tmp_path: Path) -> None:
    found, log = _play("export_program", tmp_path)
    assert found["running"] == {
        "ckpt_query_running first": 1,
        "ckpt_query_ends_total first": 0,
        "ckpt_state_rows first": 10,
        "ckpt_exporter_failures_total": 0,
    }
    stopped = {"ckpt_query_running first": 0, "ckpt_query_ends_total first": 1, "ckpt_exporter_failures_total": 0}
    assert found["stopped"] == stopped, "Spark tells of no end"
    assert found["attached"] == {
        **stopped,
        "ckpt_query_running second": 1,
        "ckpt_query_ends_total second": 0,
        "ckpt_state_rows second": 10,
    }
    assert "refused" in found["closed"]
    assert "was stopped" in found["refused"]
    assert "does not answer" in log
