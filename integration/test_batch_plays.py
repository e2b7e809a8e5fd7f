"""Actions of foreachBatch in a Spark Connect client, and of a driver that wakes late: state is as safe as elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from integration.operators.batch_plays import DONE, SEEN
from integration.operators.batch_stage import QUERIES
from integration.operators.providers import BACKEND
from integration.short import has

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

pytestmark = pytest.mark.spark

FORMATS = [1, 2] if has("4.1") else [1]
END_S = 900


def start(kind: str, folder: Path, runs: Sequence[Mapping[str, Any]]) -> subprocess.Popen[str]:
    """Start a process that performs plays, in ``folder``."""
    return subprocess.Popen(
        [sys.executable, "-m", "integration.batch_plays_program", kind, str(folder), json.dumps(runs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
    )


def read(process: subprocess.Popen[str]) -> list[Any]:
    """Return what the plays have told."""
    try:
        out, errors = process.communicate(timeout=END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, errors[-5000:]
    found: list[Any] = json.loads(out.splitlines()[-1])
    return found


@pytest.mark.in_turn
@pytest.mark.skipif(not has("4.0"), reason="Spark 3.5 has no local Connect server")
@pytest.mark.parametrize("version", FORMATS)
def test_state_is_safe_when_a_connect_client_has_the_function(version: int, tmp_path: Path) -> None:
    wanted = {name: seen for name, seen in SEEN.items() if name != "unnumbered" or version == 1}
    runs: list[dict[str, Any]] = [{"play": name} for name in wanted]
    operators = [name for name in QUERIES if name != "processor" or has("4.1")]
    runs += [{"play": "continued", "query": name} for name in operators]
    runs.append({"play": "resident", "conf": {BACKEND: "memory"}})
    found = read(start("connect", tmp_path, [{**each, "way": "direct", "format": version} for each in runs]))
    assert dict(zip(wanted, found, strict=False)) == wanted
    assert dict(zip(operators, found[len(wanted) :], strict=False)) == dict.fromkeys(operators, SEEN["continued"])
    assert found[-1] == {"ended": DONE, "totals": [1, 11, 111, 1111, 11111], "in memory": True}


CONNECT = ("connect", "direct")
SESSIONS = [("classic", "thread"), *([CONNECT] if has("4.0") else [])]


@pytest.mark.kill
@pytest.mark.in_turn
@pytest.mark.parametrize("version", FORMATS)
@pytest.mark.parametrize(("kind", "way"), SESSIONS)
def test_a_driver_whose_function_wakes_late_loses_to_its_successor(
    kind: str, way: str, version: int, tmp_path: Path
) -> None:
    how = {"way": way, "format": version, "folder": "shared"}
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(start(kind, tmp_path, [{"play": play, **how}])) for play in ("overtaken", "succeeding")
        )
        (failure,), (totals,) = read(first), read(second)
    assert re.search(r"is over: run \d+ \(run id ", failure), failure
    assert totals == [1, 11, 111, 1111]
