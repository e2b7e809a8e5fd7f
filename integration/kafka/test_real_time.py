"""A keyed operator in Spark's real-time mode: rows go through it at once, and its state counts each row once."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from integration.crash.driver import Driver, OrderFailedError
from integration.kafka.service import KafkaService, session_jars
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
"""The tasks of all stages run at the same time."""
LIMIT_S = 120


def driver_in(folder: Path) -> Driver:
    """Start a driver."""
    settings = {"spark.jars": session_jars(), "spark.sql.shuffle.partitions": "2"}
    return Driver(folder, f"local[{SLOTS}]", settings, program="integration.kafka.real_time_program")


def wait(kafka: KafkaService, sink: str, count: int) -> None:
    """Return when so many rows have come."""
    end = time.monotonic() + LIMIT_S
    while (seen := len(kafka.read(sink))) < count:
        assert time.monotonic() < end, f"{seen} of {count} rows have come"
        time.sleep(0.2)


def test_rows_are_counted_once_in_micro_batches_in_real_time_and_through_a_kill(
    kafka: KafkaService, tmp_path: Path
) -> None:
    with kafka.topic() as source, kafka.topic() as sink:
        checkpoint = str(tmp_path / "checkpoint")
        where = {"servers": source.servers, "source": source.name, "sink": sink.name, "checkpoint": checkpoint}
        with driver_in(tmp_path) as running:
            source.produce(RECORDS, USERS)
            running.order("run", **where)
            wait(kafka, sink.name, RECORDS)
            running.order("start", **where)
            source.produce(RECORDS, USERS)
            wait(kafka, sink.name, 2 * RECORDS)  # while the batch runs
            running.kill_driver()
        with driver_in(tmp_path) as running:
            running.order("start", **where)
            source.produce(RECORDS, USERS)
            wait(kafka, sink.name, 3 * RECORDS)
            assert running.order("stop") == ""
            source.produce(RECORDS, USERS)
            running.order("run", **where)
    with open_state(checkpoint, uid="count", state="records") as state:
        counts = state.to_arrow().to_pylist()
    assert {row["key"]["user"]: row["value"] for row in counts} == {
        f"user-{n}": 4 * RECORDS // USERS for n in range(USERS)
    }


def test_a_query_starts_again_after_a_kill_in_its_first_batch_but_not_where_its_logs_are_lost(
    kafka: KafkaService, tmp_path: Path
) -> None:
    with kafka.topic() as source, kafka.topic() as sink:
        checkpoint = tmp_path / "checkpoint"
        where = {"servers": source.servers, "source": source.name, "sink": sink.name, "checkpoint": str(checkpoint)}
        source.produce(RECORDS, USERS)
        with driver_in(tmp_path) as running:
            running.order("start", batch_s=600, **where)
            wait(kafka, sink.name, RECORDS)
            running.kill_driver()
        assert list((checkpoint / "state").iterdir())
        assert not list((checkpoint / "offsets").glob("[0-9]*"))
        with driver_in(tmp_path) as running:
            running.order("start", **where)
            wait(kafka, sink.name, 2 * RECORDS)
            assert running.order("stop") == ""
            assert not list((checkpoint / "_ckpt").glob("first-batch*"))
            with open_state(str(checkpoint), uid="count", state="records") as state:
                assert sum(row["value"] for row in state.to_arrow().to_pylist()) == RECORDS
            for log in ("offsets", "commits"):  # the first alone, then both
                shutil.rmtree(checkpoint / log)
                with pytest.raises(OrderFailedError, match="STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"):
                    running.order("start", **where)
