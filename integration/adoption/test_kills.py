"""Moves whose processes are killed at any time are finished by the same call, in each place and with each runner."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from integration.adoption.moving_program import ACTS, READY
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.moving import adopt
from pyspark_ckpt.state_store.blobs import place_at
from pyspark_ckpt.state_store.options import parse
from tests.offline.adopting.written import unpack_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.services.hdfs_service import HdfsService
    from tests.services.s3_server import S3Service

pytestmark = [pytest.mark.spark, pytest.mark.kill]

KILLS = 4
END_S = 300
FORM = "join-4"
FINISHED = "is not empty"
"""What the call says whose former run was killed after it had finished."""


class Moves:
    """Calls in processes of their own."""

    def __init__(self, runner: str, options: dict[str, str], draw: random.Random) -> None:
        self._runner, self._options, self._draw = runner, options, draw

    def finish(self, act: str, source: str, target: str, *, whole_s: float | None = None) -> tuple[Any, float]:
        """Return what a call says at its end, None if an earlier one came so far, and how long it took.

        ``whole_s``: how long it takes; some calls are then killed before.
        """
        for number in range(KILLS + 1):
            killed_s = None if whole_s is None or number == KILLS else self._draw.uniform(0, whole_s)
            done = self._run(act, source, target, killed_s)
            if done is not None:
                return done
        raise AssertionError("the last call was not killed, and did not come to its end")

    def _run(self, act: str, source: str, target: str, killed_s: float | None) -> tuple[Any, float] | None:
        what = {"act": act, "source": source, "target": target, "runner": self._runner, "options": self._options}
        command = [sys.executable, "-m", "integration.adoption.moving_program", json.dumps(what)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            assert process.stdout is not None
            while process.stdout.readline().strip() not in (READY, ""):
                pass
            begin = time.monotonic()
            try:
                process.wait(END_S if killed_s is None else killed_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate(timeout=END_S)
            took_s = time.monotonic() - begin
        if process.returncode == -signal.SIGKILL:
            return None
        if process.returncode:
            assert FINISHED in err, err[-4000:]
            return None, took_s
        return json.loads(out.splitlines()[-1]), took_s


def _finish_all(moves: Moves, source: str, new_folder: Callable[[], str], options: dict[str, str]) -> None:
    for act in ACTS:
        whole, killed = new_folder(), new_folder()
        expected, whole_s = moves.finish(act, source, whole)
        found, _ = moves.finish(act, source, killed, whole_s=whole_s)
        assert found in (expected, None)
        place = place_at(killed, parse(options).s3)
        assert [each.name for each in place.walk("_ckpt/restore")] == []
        if act == "hand_back":
            digests = [adopt(each, new_folder(), 3, options=options).states for each in (whole, killed)]
            assert digests[0] == digests[1]
        else:
            given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
            assert main(["checkpoint", "verify", killed, *given]) == 0
        if act == "adopt":
            source = whole


@pytest.mark.in_turn
@pytest.mark.parametrize("runner", ["processes", "job"])
def test_moves_on_a_file_system_are_finished_by_the_same_call(runner: str, tmp_path: Path) -> None:
    numbers = iter(range(100))
    checkpoints = unpack_all("4.3", tmp_path / "spark")
    moves = Moves(runner, {}, random.Random(runner))
    _finish_all(moves, str(checkpoints / FORM), lambda: str(tmp_path / f"{next(numbers)}"), {})


@pytest.mark.in_turn
@pytest.mark.parametrize("service_name", ["s3", "hdfs"])
def test_moves_in_other_places_are_finished_by_the_same_call(
    service_name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    service: S3Service | HdfsService = request.getfixturevalue(service_name)
    source, options = service.new_folder(), service.options
    place = place_at(source, parse(options).s3)
    folder = unpack_all("4.3", tmp_path) / FORM
    for path in folder.rglob("*"):
        if path.is_file():
            place.put(str(path.relative_to(folder)), path.read_bytes())
    _finish_all(Moves("processes", options, random.Random(service_name)), source, service.new_folder, options)
