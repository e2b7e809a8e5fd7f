"""A keyed operator in Spark's real-time mode: rows go through it at once, and its state counts each row once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from integration.crash.driver import Driver
from integration.kafka.service import KafkaService, session_jars
from integration.short import has
from pyspark_ckpt.reading import open_state

pytestmark = [pytest.mark.spark, pytest.mark.kill]

USERS, RECORDS = 5, 60
SLOTS = 8
"""The tasks of all stages run at the same time."""
LIMIT_S = 120


@pytest.mark.in_turn
@pytest.mark.skipif(not has("4.3"), reason="Operators keep state in real-time mode from Spark 4.3 on.")
def test_rows_are_counted_once_in_micro_batches_in_real_time_and_through_a_kill(
    kafka: KafkaService, tmp_path: Path
) -> None:
    settings = {
        "spark.jars": session_jars(),
        "spark.sql.shuffle.partitions": "2",
    }

    def driver() -> Driver:
        return Driver(tmp_path, f"local[{SLOTS}]", settings, program="integration.kafka.real_time_program")

    def wait(sink: str, count: int) -> None:
        end = time.monotonic() + LIMIT_S
        while (seen := len(kafka.read(sink))) < count:
            assert time.monotonic() < end, f"{seen} of {count} rows have come"
            time.sleep(0.2)

    with kafka.topic() as source, kafka.topic() as sink:
        checkpoint = str(tmp_path / "checkpoint")
        where = {"servers": source.servers, "source": source.name, "sink": sink.name, "checkpoint": checkpoint}
        with driver() as running:
            source.produce(RECORDS, USERS)
            running.order("run", **where)
            wait(sink.name, RECORDS)
            running.order("start", **where)
            source.produce(RECORDS, USERS)
            wait(sink.name, 2 * RECORDS)  # while the batch runs
            running.kill_driver()
        with driver() as running:
            running.order("start", **where)
            source.produce(RECORDS, USERS)
            wait(sink.name, 3 * RECORDS)
            assert running.order("stop") == ""
            source.produce(RECORDS, USERS)
            running.order("run", **where)
    with open_state(checkpoint, uid="count", state="records") as state:
        counts = state.to_arrow().to_pylist()
    assert {row["key"]["user"]: row["value"] for row in counts} == {
        f"user-{n}": 4 * RECORDS // USERS for n in range(USERS)
    }
