"""Programs drawn at random give in real-time mode the output and the states that a harness gives."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from integration.crash.driver import Driver
from integration.crash.processes import eventually
from integration.kafka.live_operators import OUTPUT
from integration.kafka.random_programs import ROWS, draw
from integration.kafka.service import KafkaService
from integration.kafka.test_live_operators import driver
from integration.short import has
from pyspark_ckpt import testing
from pyspark_ckpt.operators.types.conversions import EPOCH
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.testing.contents import read_contents

pytestmark = [
    pytest.mark.spark,
    pytest.mark.in_turn,
    pytest.mark.skipif(not has("4.3"), reason="Operators keep state in real-time mode from Spark 4.3 on."),
]
__all__ = ["driver"]

SEEDS = range(int(os.environ.get("CKPT_LIVE_PROGRAMS", "2")))
USERS = 5


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_does_what_it_does_in_a_harness(
    kafka: KafkaService, driver: Driver, tmp_path: Path, seed: int
) -> None:
    dice, name, checkpoint = random.Random(seed), f"random {seed}", tmp_path / "checkpoint"
    with kafka.topic() as rows, kafka.topic() as sink:
        where = {"servers": kafka.servers, "rows": rows.name, "others": rows.name, "sink": sink.name}
        for _ in range(dice.randrange(1, 3)):
            driver.order("start", name=name, kafka=where, checkpoint=str(checkpoint))
            for _ in range(dice.randrange(1, 6)):
                rows.produce(dice.choice([1, 7, 300]), USERS)
                time.sleep(dice.random() * 0.2)
            eventually("all output", lambda: len(kafka.read(sink.name)) >= len(rows.records), 0.3)
            assert driver.order("stop", name=name)["problem"] == ""
        found = Counter(kafka.read_keyed(sink.name))
        given = [(each.user, each.amount, EPOCH) for each in rows.records]
    with testing.keyed(ROWS, "user").process(draw(seed), OUTPUT) as harness:
        assert found == Counter((user, f"{what}|{n}") for user, what, n in harness.run(sorted(given, key=_amount)))
        states = harness.states()
    for state, held in states.items():
        with open_state(str(checkpoint), uid="it", state=state) as reader:
            assert dict(read_contents(reader)) == held


def _amount(row: tuple[str, int, datetime]) -> int:
    return row[1]
