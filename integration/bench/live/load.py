"""A load on a topic, and the latency of what comes to another: the clock of both is this machine's."""

from __future__ import annotations

import multiprocessing
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

KEYS = 1000
PAUSE_S = 0.002
AT_ONCE = 1000
ANSWER_S = 60
QUIET_S = 3.0
"""The load has arrived if nothing has come for so long."""


@dataclass(frozen=True)
class Arrival:
    """When rows were sent and when their output came, in µs. One output may stand for several rows, none is missed."""

    sent_us: NDArray[np.int64]
    came_us: NDArray[np.int64]

    def latency_ms(self, after_s: float) -> NDArray[np.float64]:
        """Return the latency of rows that were sent after so many seconds."""
        chosen = self.sent_us >= self.sent_us.min() + int(after_s * 1e6)
        latency: NDArray[np.float64] = (self.came_us - self.sent_us)[chosen] / 1000
        return latency


def produce(servers: str, topic: str, rate: int, seconds: float, first: int) -> int:
    """Send ``rate`` rows a second, numbered from ``first``; return the number after the last."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "acks": 1})
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
    return first + number


@contextmanager
def watching(servers: str, topic: str) -> Iterator[Connection]:
    """A process that takes the arrivals: send anything to its connection, and it sends those until now, when quiet."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=_watch, args=(its, servers, topic), daemon=True)
    process.start()
    mine.recv()
    try:
        yield mine
    finally:
        process.terminate()
        process.join()


def _watch(connection: Connection, servers: str, topic: str) -> None:
    settings = {"bootstrap.servers": servers, "group.id": uuid.uuid4().hex, "fetch.wait.max.ms": 10}
    with closing(Consumer(settings)) as consumer:
        partitions = consumer.list_topics(topic, ANSWER_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
        connection.send("ready")
        values: list[bytes] = []
        came: list[int] = []
        while True:
            messages = consumer.consume(AT_ONCE, 0.1)
            now_us = time.time_ns() // 1000
            values += [value for each in messages if (value := each.value()) is not None]
            came += [now_us] * len(messages)
            if connection.poll() and (not came or now_us - came[-1] > QUIET_S * 1e6):
                connection.recv()
                sent = np.array([int(value.rpartition(b"|")[2]) for value in values], np.int64)
                connection.send(Arrival(sent, np.array(came, np.int64)))
                values, came = [], []
