"""A load on a topic, and the latency of what comes to another: the clock of both is this machine's."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition

from integration.bench.spawned import spawned

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

KEYS = 1000
PAUSE_S = 0.005
AT_ONCE = 1000
ANSWER_S = 60
PATIENCE_S = 90


def produce(servers: str, topic: str, rate: int, seconds: float, first: int) -> int:
    """Send ``rate`` rows a second, numbered from ``first``; return how many."""
    producer = Producer(
        {"bootstrap.servers": servers, "linger.ms": 1, "acks": 1, "queue.buffering.max.messages": 10**6}
    )
    keys = np.random.default_rng(first).integers(0, KEYS, int(rate * seconds)).tolist()
    number, start = 0, time.perf_counter()
    while number < len(keys):
        due = min(len(keys), int((time.perf_counter() - start) * rate))
        for key in keys[number:due]:
            producer.produce(topic, f"{first + number}|key-{key}|{time.time_ns() // 1000}")
            number += 1
        producer.poll(0)
        time.sleep(PAUSE_S)
    if producer.flush(ANSWER_S):
        raise RuntimeError("not all rows were sent")
    return number


@contextmanager
def watching(servers: str, topic: str) -> Iterator[Connection]:
    """A process that takes what comes. Send it a number of rows: it sends their latencies in µs when all have come."""
    with spawned(_watch, servers, topic) as watched:
        watched.recv()
        yield watched


def latencies_ms(watched: Connection, rows: int) -> NDArray[np.float64]:
    """Return the latencies of the next ``rows`` that come. Raises TimeoutError."""
    watched.send(rows)
    if not watched.poll(PATIENCE_S):
        raise TimeoutError(f"{rows:,} rows have not come within {PATIENCE_S} s.")
    found: NDArray[np.int64] = watched.recv()
    return found / 1000


def _watch(connection: Connection, servers: str, topic: str) -> None:
    settings = {"bootstrap.servers": servers, "group.id": uuid.uuid4().hex, "fetch.wait.max.ms": 10}
    with closing(Consumer(settings)) as consumer:
        partitions = consumer.list_topics(topic, ANSWER_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
        connection.send("ready")
        values: list[bytes] = []
        came_us: list[int] = []
        wanted = 0
        while True:
            messages = consumer.consume(AT_ONCE, 0.001)
            now_us = time.time_ns() // 1000
            values += [value for each in messages if (value := each.value()) is not None]
            came_us += [now_us] * len(messages)
            if not wanted and connection.poll():
                wanted = connection.recv()
            if wanted and len(values) >= wanted:
                sent_us = np.array([int(value.rpartition(b"|")[2]) for value in values[:wanted]], np.int64)
                connection.send(np.array(came_us[:wanted], np.int64) - sent_us)
                values, came_us, wanted = values[wanted:], came_us[wanted:], 0
