"""A driver that is killed while it rescales its query, at random moments: the next one goes on, and no row is lost.

``CKPT_RESCALE_SEEDS=7,12`` names seeds; without it there is one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration.running import kill_program

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.in_turn]

SEEDS = [int(seed) for seed in os.environ.get("CKPT_RESCALE_SEEDS", "1").split(",")]
KILLS = 4
USERS = 9
ROWS = 5
WAIT_S = 4.0
"""A kill comes at most so long after a rescaling has begun, which takes about as long."""


class Feed:
    """Puts a file into the input whenever it is asked to, and knows what was in all of them."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        """Begin without files."""
        self.folder, self.dice, self.seen, self.files = folder, dice, Counter[int](), 0
        folder.mkdir()

    def put(self) -> None:
        """Put a file."""
        users = [self.dice.randrange(USERS) for _ in range(ROWS)]
        path = self.folder.parent / "new"
        path.write_text("".join(f"{user}\n" for user in users))
        path.rename(self.folder / f"{self.files:04}.csv")
        self.seen.update(users)
        self.files += 1


def start(folder: Path, times: int, seed: int, log: Path) -> subprocess.Popen[str]:
    """Start the program in a process group of its own."""
    with log.open("ab") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "integration.running.kill_program", str(folder), str(times), str(seed)],
            cwd=Path(kill_program.__file__).parents[2],
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )


def lines(program: subprocess.Popen[str]) -> Iterator[str]:
    """The lines that the program prints."""
    assert program.stdout is not None
    yield from map(str.strip, program.stdout)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_next_driver_goes_on_and_every_row_counts_once(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    (tmp_path / "out").mkdir()
    feed, log = Feed(tmp_path / "in", dice), tmp_path / "log"
    for _ in range(4):
        feed.put()
    for number in range(KILLS):
        program = start(tmp_path, 100, seed * 100 + number, log)
        until = float("inf")
        is_resumed = dice.random() < 0.3  # kill while it goes on with what the last one has left
        if not is_resumed:
            assert "RESCALES" in lines(program), log.read_text()[-3000:]
            until = time.monotonic() + dice.random() * WAIT_S
        else:
            until = time.monotonic() + 4 + dice.random() * 2 * WAIT_S
        while time.monotonic() < until:
            time.sleep(0.2)
            feed.put()
            assert program.poll() is None, log.read_text()[-3000:]
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()
        assert program.stdout is not None
        program.stdout.close()
    program = start(tmp_path, 2, seed, log)
    assert "DONE" in lines(program), log.read_text()[-3000:]
    program.wait()
    assert program.stdout is not None
    program.stdout.close()
    assert not (tmp_path / "wrong").exists(), (tmp_path / "wrong").read_text()
    batches = sorted((tmp_path / "out").glob("*.json"), key=lambda path: int(path.stem))
    assert [int(path.stem) for path in batches] == list(range(len(batches)))
    newest: dict[int, int] = {}
    for path in batches:
        newest.update(map(tuple, json.loads(path.read_text())))
    assert newest == dict(feed.seen), f"seed {seed}"
