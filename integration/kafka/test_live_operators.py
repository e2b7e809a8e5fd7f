"""Every form of a keyed operator in Spark's real-time mode: its output comes at once, and its state lasts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.crash.driver import Driver
from integration.kafka.live_operators import QUERIES
from integration.kafka.service import KafkaService, Topic, session_jars
from integration.short import has

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not has("4.3"), reason="Operators keep state in real-time mode from Spark 4.3 on."),
]

USERS, RECORDS = 4, 20
SLOTS = 8
LIMIT_S = 90
LAST = {
    "per key": {"row"},
    "vectorised": {"rows"},
    "collections": {"list", "map"},
    "chain": {"rows"},
    "two inputs": {"first", "second"},
    "rules": {"row"},
    "timers": {"row"},
    "event timers": {"row", "passed"},
    "Row form": {"Row"},
    "pandas form": {"pandas"},
}
"""What the output counts, up to the number of a user's rows."""


def _greatest(kafka: KafkaService, sink: Topic) -> dict[str, int]:
    found: dict[str, int] = {}
    for value in kafka.read(sink.name):
        what, _, n = value.decode().partition("|")
        found[what] = max(found.get(what, 0), int(n))
    return found


def _wait(kafka: KafkaService, sink: Topic, expected: dict[str, int]) -> None:
    end = time.monotonic() + LIMIT_S
    while not expected.items() <= (found := _greatest(kafka, sink)).items():
        assert time.monotonic() < end, f"{found} in place of {expected}"
        time.sleep(0.3)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", QUERIES)
def test_output_comes_at_once_and_state_goes_on_after_a_restart(
    kafka: KafkaService, driver: Driver, tmp_path: Path, name: str
) -> None:
    with kafka.topic() as rows, kafka.topic() as others, kafka.topic() as sink:
        where = {"servers": kafka.servers, "rows": rows.name, "others": others.name, "sink": sink.name}
        others.produce(RECORDS, USERS)
        for turn in (1, 2):
            driver.order("start", name=name, kafka=where, checkpoint=str(tmp_path / "checkpoint"))
            rows.produce(RECORDS, USERS)
            expected = dict.fromkeys(LAST[name], turn * RECORDS // USERS)
            if name == "two inputs":
                expected["second"] = RECORDS // USERS
            _wait(kafka, sink, expected)
            told = driver.order("stop", name=name)
            assert told["problem"] == ""
            assert told["rows"] > 0
            assert told["latencies"] == told["rows"] or (name == "rules" and told["latencies"] > told["rows"])
            assert told["groups"] > 0
        found = _greatest(kafka, sink)
    if name == "rules":
        assert found["rules"] == USERS
    if name == "timers":
        assert 0 <= found["fired"] < 5000


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """One driver for all queries."""
    folder = tmp_path_factory.mktemp("live")
    settings = {"spark.jars": session_jars(), "spark.sql.shuffle.partitions": "2"}
    with Driver(folder, f"local[{SLOTS}]", settings, program="integration.kafka.live_operators") as driver:
        yield driver
