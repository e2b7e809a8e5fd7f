"""Kills at random, in micro-batches and in real-time mode in turns, with rescales between: each row counts once."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from integration.crash.driver import Driver
from integration.kafka.service import KafkaService, session_jars
from integration.progress import has_logged_offsets
from integration.short import has
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.savepoints import restore, savepoint

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kill,
    pytest.mark.in_turn,
    pytest.mark.skipif(not has("4.3"), reason="Operators keep state in real-time mode from Spark 4.3 on."),
]

SEEDS = [int(seed) for seed in os.environ.get("CKPT_LIVE_SEEDS", "1").split(",")]
KILLS = int(os.environ.get("CKPT_LIVE_KILLS", "2"))
USERS = 7
SLOTS = 8
MOST_PARTITIONS = 4
WAIT_S = 8.0
"""A batch in real-time mode lasts five seconds."""


@pytest.mark.parametrize("seed", SEEDS)
def test_each_row_counts_once_and_the_greatest_version_of_a_key_is_right(
    kafka: KafkaService, tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    partitions, checkpoint = 2, tmp_path / "checkpoint-0"

    def driver() -> Driver:
        settings = {"spark.jars": session_jars(), "spark.sql.shuffle.partitions": str(partitions)}
        return Driver(tmp_path, f"local[{SLOTS}]", settings, program="integration.kafka.real_time_program")

    with kafka.topic() as source, kafka.topic() as sink:

        def where() -> dict[str, str]:
            names = {"servers": source.servers, "source": source.name, "sink": sink.name}
            return {**names, "checkpoint": str(checkpoint)}

        for kill in range(KILLS):
            with driver() as running:
                has_begun = has_logged_offsets(checkpoint)  # else Spark starts no micro-batches
                running.order("start_batches" if kill % 2 and has_begun else "start", **where())
                until = time.monotonic() + 2 + dice.random() * WAIT_S
                while time.monotonic() < until:
                    source.produce(dice.randrange(1, 60), USERS)
                    time.sleep(dice.random() * 0.3)
                assert running.order("describe") == ""
                if dice.random() < 0.3:
                    for worker in running.python_workers()[:1]:
                        worker.kill()
                    time.sleep(dice.random() * 3)
                running.kill_driver(dice.choice(["both", "jvm"]))
            if dice.random() < 0.5 and any((checkpoint / "commits").glob("[0-9]*")):
                saved, partitions = tmp_path / f"saved-{kill}", dice.randrange(1, MOST_PARTITIONS + 1)
                checkpoint_after = tmp_path / f"checkpoint-{kill + 1}"
                savepoint(str(checkpoint), str(saved))
                restore(str(saved), str(checkpoint_after), parallelism=partitions)
                checkpoint = checkpoint_after
        with driver() as running:
            if not has_logged_offsets(checkpoint):
                running.order("start", **where())
                assert running.order("stop") == ""
            running.order("run", **where())
        sent = Counter(record.user for record in source.records)
        versions = kafka.read_keyed(sink.name)
    with open_state(str(checkpoint), uid="count", state="records") as state:
        counts = {row["key"]["user"]: row["value"] for row in state.to_arrow().to_pylist()}
    assert counts == sent
    greatest: dict[str, int] = {}
    for user, version in versions:
        greatest[user] = max(greatest.get(user, 0), int(version))
    assert greatest == sent
