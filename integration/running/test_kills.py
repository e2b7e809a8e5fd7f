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

from integration.ha.places import hdfs_place
from integration.kafka.service import CONNECTOR, KafkaService, kafka
from integration.running import kill_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.services.hdfs_service import HdfsService

__all__ = ["kafka"]

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.in_turn]

SEEDS = [int(seed) for seed in os.environ.get("CKPT_RESCALE_SEEDS", "1").split(",")]
KILLS = 4
USERS = 9
ROWS = 5
WAIT_S = 4.0
"""A kill comes at most so long after a rescaling has begun, which takes about as long."""


class Files:
    """An input of files."""

    def __init__(self, folder: Path) -> None:
        """Begin without files."""
        self.folder, self.count = folder, 0
        folder.mkdir()

    def put(self, users: list[int]) -> None:
        """Put a file."""
        path = self.folder.parent / "new"
        path.write_text("".join(f"{user}\n" for user in users))
        path.rename(self.folder / f"{self.count:04}.csv")
        self.count += 1


class Feed:
    """Puts rows into the input whenever it is asked to, and knows all of them."""

    def __init__(self, put: Callable[[list[int]], None], dice: random.Random) -> None:
        """Begin without rows."""
        self.put_users, self.dice, self.seen = put, dice, Counter[int]()

    def put(self) -> None:
        """Put some rows."""
        users = [self.dice.randrange(USERS) for _ in range(ROWS)]
        self.put_users(users)
        self.seen.update(users)


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
    play(seed, tmp_path, Files(tmp_path / "in").put)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_next_driver_goes_on_in_hdfs_with_kafka(
    seed: int, hdfs: HdfsService, kafka: KafkaService, tmp_path: Path
) -> None:
    with kafka.topic() as topic:
        place = hdfs_place(hdfs)
        settings = {
            "conf": {**place.conf, "spark.jars": ",".join(str(jar) for jar in CONNECTOR.glob("*.jar"))},
            "checkpoint": f"{place.url}/query",
            "servers": topic.servers,
            "topic": topic.name,
        }
        (tmp_path / "settings.json").write_text(json.dumps(settings))
        play(seed, tmp_path, topic.produce_keys)
        sent = kafka.read(f"{topic.name}-out")
    batches: dict[int, set[tuple[int, int]]] = {}
    for each in map(json.loads, sent):
        batches.setdefault(each["batch"], set()).add((each["user"], each["seen"]))
    assert {number: sorted(map(list, rows)) for number, rows in batches.items()} == {
        int(path.stem): json.loads(path.read_text()) for path in (tmp_path / "out").glob("*.json")
    }, "a batch that was sent twice has the same rows"


def play(seed: int, folder: Path, put: Callable[[list[int]], None]) -> None:
    """Kill the program again and again, and compare what its sink has with the input."""
    dice = random.Random(seed)
    (folder / "out").mkdir()
    feed, log = Feed(put, dice), folder / "log"
    for _ in range(4):
        feed.put()
    for number in range(KILLS):
        program = start(folder, 100, seed * 100 + number, log)
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
    program = start(folder, 2, seed, log)
    assert "DONE" in lines(program), log.read_text()[-3000:]
    program.wait()
    assert program.stdout is not None
    program.stdout.close()
    assert not (folder / "wrong").exists(), (folder / "wrong").read_text()
    batches = sorted((folder / "out").glob("*.json"), key=lambda path: int(path.stem))
    assert [int(path.stem) for path in batches] == list(range(len(batches)))
    newest: dict[int, int] = {}
    for path in batches:
        newest.update(map(tuple, json.loads(path.read_text())))
    assert newest == dict(feed.seen), f"seed {seed}"
