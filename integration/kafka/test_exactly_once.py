"""Exactly once from Kafka to sinks that know batches, across a savepoint, a restore, kills and a rescaling."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from integration.crash import processes
from integration.crash.driver import LOCAL, Driver
from integration.kafka.program import HELD, HOLD
from integration.kafka.service import PARTITIONS, KafkaService, Topic, session_jars
from integration.kafka.sinks import Row, final, written_in_transactions, written_over
from tests.labs.beside import beside

pytestmark = [pytest.mark.spark, pytest.mark.kill]

KINDS = {"keyed": "native", "aggregation": "canonical"}
"""The queries, and the kinds of savepoints that are taken of them."""
USERS = 7


class Life:
    """Both queries over one topic, in one driver after the other."""

    def __init__(self, folder: Path, topic: Topic) -> None:
        """Begin with nothing."""
        self.folder = folder
        self.topic = topic
        for name in KINDS:
            (folder / name).mkdir()

    def driver(self) -> Driver:
        """A driver with Spark's connector to Kafka."""
        return Driver(self.folder, LOCAL, {"spark.jars": session_jars()}, program="integration.kafka.program")

    def start(self, driver: Driver, checkpoint: str, partitions: int) -> None:
        """Start the queries on their checkpoints of this name."""
        for name in KINDS:
            driver.order(
                "start",
                name=name,
                checkpoint=self.path(name, checkpoint),
                folder=self.path(name),
                partitions=partitions,
                servers=self.topic.servers,
                topic=self.topic.name,
            )

    def path(self, name: str, *more: str) -> str:
        """The folder of a query, or one in it."""
        return str(self.folder.joinpath(name, *more))

    def _found(self, name: str, pattern: str, least: int = 1) -> list[Path]:
        found = list(self.folder.joinpath(name).glob(pattern))
        return found if len(found) >= least else []

    def hold(self) -> None:
        """Let no batch end from now on that has been written."""
        for name in KINDS:
            Path(self.path(name, HOLD)).touch()

    def kill_when_written(self, driver: Driver) -> dict[str, int]:
        """SIGKILL the driver when both queries have written a batch that is held; the number of that batch."""
        killed = {}
        for name in KINDS:
            (mark,) = processes.eventually(f"a held batch of {name}", partial(self._found, name, HELD.format("*")))
            killed[name] = int(mark.name.removeprefix(HELD.format("")))
        driver.kill_driver()
        driver.await_end()
        for name in KINDS:
            for path in (Path(self.path(name, HOLD)), Path(self.path(name, HELD.format(killed[name])))):
                path.unlink()
        return killed

    def await_batches(self, count: int) -> None:
        """Return when the sinks of both queries have so many batches."""
        for name in KINDS:
            look = partial(self._found, name, "batches/*/*.json", count)
            processes.eventually(f"batches of {name}", look)

    @contextmanager
    def records_come_in(self) -> Iterator[None]:
        """While the block runs, and beyond its beginning and its end."""

        def produce(ended: threading.Event) -> None:
            while True:
                self.topic.produce(2, USERS)
                if ended.wait(0.1):
                    return

        with beside(produce):
            yield

    def expected(self) -> dict[str, Row]:
        """The counts of all records that the broker has acknowledged."""
        found: dict[str, Row] = {}
        for record in self.topic.records:
            _, records, total, offsets = found.get(record.user, (record.user, 0, 0, 0))
            found[record.user] = record.user, records + 1, total + record.amount, offsets + record.offset
        return found


@pytest.mark.in_turn
def test_every_record_is_counted_once_across_savepoint_restore_kills_and_rescaling(
    kafka: KafkaService, tmp_path: Path
) -> None:
    with kafka.topic() as topic:
        life = Life(tmp_path, topic)
        with life.driver() as driver:
            topic.produce(100, USERS)
            life.start(driver, "first", 2)
            life.await_batches(2)
            with life.records_come_in():
                stopped = {
                    name: driver.order("stop", name=name, target=life.path(name, "saved"), kind=kind)
                    for name, kind in KINDS.items()
                }
            for name in KINDS:
                driver.order("restore", saved=life.path(name, "saved"), target=life.path(name, "second"), partitions=3)
            topic.produce(60, USERS)
            life.hold()
            life.start(driver, "second", 3)
            killed = [life.kill_when_written(driver)]
        assert killed == [stopped], "the first batch after the savepoint"

        with life.driver() as driver:
            life.start(driver, "second", 3)
            driver.order("catch_up", names=list(KINDS))
            life.hold()
            topic.produce(60, USERS)
            killed.append(life.kill_when_written(driver))

        with life.driver() as driver:
            for name in KINDS:
                where = {"checkpoint": life.path(name, "second"), "target": life.path(name, "third")}
                version = driver.order("rescale", partitions=2, **where)
                assert version == killed[1][name], "the batch that was written is not committed"
            topic.produce(60, USERS)
            life.start(driver, "third", 2)
            driver.order("catch_up", names=list(KINDS))

    for name in KINDS:
        replaced = written_over(tmp_path / name / "batches")
        times, appended = written_in_transactions(tmp_path / name / "sink.db")
        assert final(replaced) == final(appended) == life.expected()
        assert replaced == appended, "a batch that ran again came to the same rows"
        assert list(times) == list(range(len(times)))
        assert {batch for batch, number in times.items() if number != 1} == {each[name] for each in killed}
        assert_offsets_follow_each_other(tmp_path / name, topic, len(times))


def assert_offsets_follow_each_other(folder: Path, topic: Topic, batches: int) -> None:
    """Each batch of any checkpoint begins where the one before it ends, up to the last record."""
    ends: dict[int, dict[str, int]] = {}
    for path in folder.glob("*/offsets/[0-9]*"):
        found = json.loads(path.read_text(encoding="utf-8").splitlines()[2])[topic.name]
        assert ends.setdefault(int(path.name), found) == found, path
    assert sorted(ends) == list(range(batches))
    for partition in map(str, range(PARTITIONS)):
        its = [ends[batch][partition] for batch in range(batches)]
        assert its == sorted(its)
        assert its[-1] == sum(str(record.partition) == partition for record in topic.records)
    assert {(record.partition, record.offset) for record in topic.records} == {
        (int(partition), offset) for partition, end in ends[batches - 1].items() for offset in range(end)
    }
