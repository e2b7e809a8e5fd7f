"""What goes wrong within a batch of real-time mode: state counts each row once all the same, and memory stays small."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest

from integration.crash.driver import ROOT, Driver
from integration.crash.processes import eventually
from integration.kafka.service import READY, KafkaService, Topic, session_jars
from integration.progress import has_logged_offsets
from integration.short import has
from pyspark_ckpt.reading import open_state

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kill,
    pytest.mark.in_turn,
    pytest.mark.skipif(not has("4.3"), reason="Operators keep state in real-time mode from Spark 4.3 on."),
]

USERS, RECORDS = 5, 60
SLOTS = 8
LONG_S = 600
STOP_S = 20
MANY = 200_000
WORKER_MB = 230
"""A worker has 100 MB before its first row."""


@dataclass
class Query:
    """A query from topic to topic, and its driver."""

    driver: Driver
    kafka: KafkaService
    source: Topic
    sink: Topic
    checkpoint: str

    @property
    def where(self) -> dict[str, str]:
        """The arguments of the program."""
        names = {"servers": self.source.servers, "source": self.source.name, "sink": self.sink.name}
        return {**names, "checkpoint": self.checkpoint}

    def wait(self, count: int) -> None:
        """Return when so many rows have come."""
        eventually(f"{count} rows", lambda: len(self.kafka.read(self.sink.name)) >= count, 0.2)

    def finish(self) -> None:
        """Process the rest in micro-batches, and compare the state with all records.

        A query whose first batch was interrupted must first end one in real-time mode: only then it has logged offsets.
        """
        if not has_logged_offsets(Path(self.checkpoint)):
            self.driver.order("start", **self.where)
            assert self.driver.order("stop") == ""
        self.driver.order("run", **self.where)
        with open_state(self.checkpoint, uid="count", state="records") as state:
            counts = {row["key"]["user"]: row["value"] for row in state.to_arrow().to_pylist()}
        assert counts == Counter(record.user for record in self.source.records)


@contextmanager
def begun(kafka: KafkaService, folder: Path, **options: str) -> Iterator[Query]:
    settings = {"spark.jars": session_jars(), "spark.sql.shuffle.partitions": "2"}
    settings |= {f"spark.sql.streaming.stateStore.ckpt.{name}": value for name, value in options.items()}
    program = "integration.kafka.real_time_program"
    with (
        kafka.topic() as source,
        kafka.topic() as sink,
        Driver(folder, f"local[{SLOTS}]", settings, program=program) as driver,
    ):
        yield Query(driver, kafka, source, sink, str(folder / "checkpoint"))


def test_a_query_that_is_stopped_within_its_batch_goes_on(kafka: KafkaService, tmp_path: Path) -> None:
    with begun(kafka, tmp_path) as query:
        query.source.produce(RECORDS, USERS)
        query.driver.order("start", batch_s=LONG_S, **query.where)
        query.wait(RECORDS)
        assert query.driver.order("stop_at_once") < STOP_S
        eventually("the workers end", lambda: not query.driver.python_workers())
        query.finish()


def test_a_processor_that_raises_ends_the_query_with_its_error(kafka: KafkaService, tmp_path: Path) -> None:
    with begun(kafka, tmp_path) as query:
        query.source.produce(RECORDS, USERS)
        query.driver.order("start", batch_s=LONG_S, **query.where)
        query.wait(RECORDS)
        query.source.produce_keys([0])
        problem = query.driver.order("end")
        assert "a record of nobody" in problem
        assert "'count'" in problem
        assert "user='0'" in problem


def test_a_worker_that_is_killed_ends_the_query_or_is_replaced(kafka: KafkaService, tmp_path: Path) -> None:
    with begun(kafka, tmp_path) as query:
        query.source.produce(RECORDS, USERS)
        query.driver.order("start", batch_s=LONG_S, **query.where)
        query.wait(RECORDS)
        for worker in query.driver.python_workers():
            worker.kill()
        assert "Python worker exited unexpectedly" in query.driver.order("end")
        query.finish()


def test_a_long_batch_takes_little_memory_and_rows_that_come_faster_than_they_are_processed_wait(
    kafka: KafkaService, tmp_path: Path
) -> None:
    with begun(kafka, tmp_path, workerMemory="16m") as query:
        query.driver.order("start", batch_s=20, **query.where)
        query.source.produce(MANY, MANY)
        most = 0
        while not query.driver.order("spills"):
            most = max([most, *map(_size, query.driver.python_workers())])
            time.sleep(0.1)
        assert most < WORKER_MB << 20
        assert query.driver.order("stop") == ""
        query.finish()


def test_the_demo_shows_latencies(tmp_path: Path) -> None:
    if not READY.exists():
        pytest.skip("NOT RUN: needs Kafka and Spark's connector, which `make .tools/kafka/.ready` fetches by Maven.")
    command = [sys.executable, "-m", "integration.demo.live", "--rate", "100", "--seconds", "150"]
    errors, shown = tmp_path / "errors", ""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with (
        errors.open("w") as told,
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=PIPE, stderr=told, text=True) as demo,
    ):
        assert demo.stdout is not None
        for line in demo.stdout:
            shown += line
            if line.startswith("batch 1: "):
                demo.send_signal(signal.SIGINT)
    assert demo.returncode == 0, errors.read_text()[-3000:]
    assert "page Progress: http://127.0.0.1:" in shown
    assert re.search(r"batch 1: [\d,]+ payments, half of them within \d+ ms", shown), shown


def _size(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
