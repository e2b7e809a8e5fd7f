"""A real Kafka for tests: a given one, or a broker of its own in a JVM."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import pyspark_ckpt
from integration.crash.driver import ROOT
from tests.services import java_program

ADDRESS = "PYSPARK_CKPT_TEST_KAFKA"
PROGRAM = Path(__file__).with_name("KafkaBroker.java")
BROKER = ROOT / ".tools" / "kafka" / "broker"
CONNECTOR = ROOT / ".tools" / "kafka" / "connector"
READY = ROOT / ".tools" / "kafka" / ".ready"
PARTITIONS = 3
ANSWER_S = 60
AT_ONCE = 50_000
"""The producer's queue has room for twice as many."""


def session_jars(*more: Path) -> str:
    """Return ``spark.jars`` of a session that reads from Kafka: those of this package, the connector, and ``more``."""
    return ",".join([pyspark_ckpt.session.jar_path(), *map(str, [*sorted(CONNECTOR.glob("*.jar")), *more])])


_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
offsets.topic.replication.factor=1
log.dirs={folder}
"""


@dataclass(frozen=True)
class Record:
    """A record as the broker has acknowledged it."""

    user: str
    amount: int
    partition: int
    offset: int


@dataclass
class Topic:
    """A topic with records of users and amounts, and all that were acknowledged."""

    servers: str
    name: str
    records: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Connect."""
        self._producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True, "linger.ms": 0})
        self._next = 0

    def produce(self, count: int, users: int) -> None:
        """Append so many records of as many users; they are acknowledged when this returns."""
        for amount in range(self._next, self._next + count):
            self._producer.produce(self.name, str(amount), f"user-{amount % users}", on_delivery=self._delivered)
            if amount % AT_ONCE == 0:
                self._producer.flush(ANSWER_S)
        self._next += count
        assert self._producer.flush(ANSWER_S) == 0
        assert len(self.records) == self._next

    def produce_keys(self, keys: list[int]) -> None:
        """Append a record without a value for each key; they are acknowledged when this returns."""
        for key in keys:
            self._producer.produce(self.name, None, str(key))
        assert self._producer.flush(ANSWER_S) == 0

    def close(self) -> None:
        """Disconnect."""
        self._producer.close()

    def _delivered(self, problem: KafkaError | None, message: Message) -> None:
        assert problem is None, problem
        key, value, partition, offset = message.key(), message.value(), message.partition(), message.offset()
        assert isinstance(key, bytes)
        assert value is not None
        assert partition is not None
        assert offset is not None
        self.records.append(Record(key.decode(), int(value), partition, offset))


@dataclass(frozen=True)
class KafkaService:
    """A running Kafka."""

    servers: str

    @contextmanager
    def topic(self, partitions: int = PARTITIONS) -> Iterator[Topic]:
        """A new topic, for as long as the block takes."""
        admin, name = AdminClient({"bootstrap.servers": self.servers}), f"test-{uuid.uuid4().hex}"
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(ANSWER_S)
        try:
            with closing(Topic(self.servers, name)) as topic:
                yield topic
        finally:
            admin.delete_topics([name])[name].result(ANSWER_S)

    def read(self, topic: str) -> list[bytes]:
        """Return the values of all records of a topic."""
        return [value for _, value in self._read(topic)]

    def read_keyed(self, topic: str) -> list[tuple[str, str]]:
        """Return the keys and values of all records of a topic, in which each record has a key."""
        return [(key.decode(), value.decode()) for key, value in self._read(topic) if key is not None]

    def _read(self, topic: str) -> list[tuple[bytes | None, bytes]]:
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": uuid.uuid4().hex})
        records: list[tuple[bytes | None, bytes]] = []
        try:
            for number in consumer.list_topics(topic, ANSWER_S).topics[topic].partitions:
                end = consumer.get_watermark_offsets(TopicPartition(topic, number), ANSWER_S)[1]
                consumer.assign([TopicPartition(topic, number, 0)])
                for _ in range(end):
                    message = consumer.poll(ANSWER_S)
                    assert message is not None
                    key, value = message.key(), message.value()
                    assert isinstance(value, bytes)
                    assert key is None or isinstance(key, bytes)
                    records.append((key, value))
        finally:
            consumer.close()
        return records


@contextmanager
def running(folder: Path, flags: Sequence[str] = java_program.SHORT_LIFE) -> Iterator[KafkaService]:
    """A service, whose JVM has ``flags``; ``folder`` is where it keeps all. Skips the test if there is none."""
    if not READY.exists():
        pytest.skip("NOT RUN: needs Kafka and Spark's connector, which `make .tools/kafka/.ready` fetches by Maven.")
    if given := os.environ.get(ADDRESS):
        yield KafkaService(given)
        return
    folder.mkdir()
    with socket.socket() as broker, socket.socket() as controller:
        for free in (broker, controller):
            free.bind(("127.0.0.1", 0))
        ports = {"broker": broker.getsockname()[1], "controller": controller.getsockname()[1]}
    properties = folder / "server.properties"
    properties.write_text(_PROPERTIES.format(folder=folder / "logs", **ports), encoding="ascii")
    jars = sorted(BROKER.glob("*.jar"))
    with java_program.running(PROGRAM, jars, properties, folder / "broker.log", flags) as process:
        java_program.next_line(process)
        yield KafkaService(f"127.0.0.1:{ports['broker']}")


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaService]:
    """A real Kafka."""
    with running(tmp_path_factory.mktemp("kafka") / "data") as service:
        yield service
