"""A silent partition of a Kafka topic, as an input of its own, holds up no join, window or timer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from integration.crash.driver import LOCAL, Driver
from integration.kafka.idle_program import QUERIES
from integration.kafka.service import ANSWER_S, KafkaService, Topic, session_jars

pytestmark = [pytest.mark.spark, pytest.mark.kill]

OUT = {
    "join": [["a", "00:00", None]],
    "windows": [["a", "00:00", 1], ["b", "00:00", 1]],
    "timers": [["a", "00:10", 1], ["b", "00:15", 1]],
}


def produce(topic: Topic, *records: tuple[int, str, int]) -> None:
    """Append records: a partition, a key and a minute."""
    producer = Producer({"bootstrap.servers": topic.servers})
    for partition, key, minute in records:
        producer.produce(topic.name, str(minute), key, partition=partition)
    assert producer.flush(ANSWER_S) == 0
    producer.close()


@pytest.mark.in_turn
def test_a_silent_partition_holds_up_nothing(kafka: KafkaService, tmp_path: Path) -> None:

    def driver() -> Driver:
        return Driver(tmp_path, LOCAL, {"spark.jars": session_jars()}, program="integration.kafka.idle_program")

    def run(running: Driver, topic: Topic, after: str) -> dict[str, dict[str, Any]]:
        where = {"servers": topic.servers, "topic": topic.name, "after": after}
        return {name: running.order("run", name=name, checkpoint=str(tmp_path / name), **where) for name in QUERIES}

    def watermarks(found: dict[str, dict[str, Any]]) -> set[int]:
        return {each["watermark"] for each in found.values()}

    with kafka.topic() as topic:
        with driver() as running:
            produce(topic, (0, "a", 0), (1, "b", 5))
            assert watermarks(run(running, topic, "1 hour")) == {0}
            produce(topic, (0, "a", 30))
            assert watermarks(run(running, topic, "1 hour")) == {5}
            time.sleep(2)
            produce(topic, (0, "a", 31))
            found = run(running, topic, "2 seconds")
            assert watermarks(found) == {31}
            assert {name: each["out"] for name, each in found.items()} == OUT
            running.kill_driver()
            running.await_end()
        with driver() as running:
            produce(topic, (0, "a", 60))
            assert watermarks(run(running, topic, "2 seconds")) == {60}
            produce(topic, (0, "a", 90), (1, "b", 61), (1, "late", 20))
            found = run(running, topic, "1 hour")
            assert watermarks(found) == {61}
            assert not any(row[0] == "late" for each in found.values() for row in each["out"])
