"""Random lives of a keyed program in one partition, without Spark: many in the time that Spark takes for one."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import closing
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ckpt.operators.bound.declared_states import with_types
from pyspark_ckpt.operators.declarations.operator import BROADCAST, Input, KeyedOperator
from pyspark_ckpt.operators.declarations.processors import Context, find_states
from pyspark_ckpt.operators.session.told_operators import Clocks
from pyspark_ckpt.operators.task.group_times import GroupTimes
from pyspark_ckpt.operators.task.partition_run import PartitionRun
from pyspark_ckpt.state_store.format.spark_groups import GroupTimesRow
from pyspark_ckpt.state_store.transactions.ticket import read_ticket
from pyspark_ckpt.testing.given_rows import read_rows
from tests.labs.lab import Lab
from tests.life.course import DELAY, INPUTS, Course
from tests.life.truth import Line, Truth

INPUT = pa.schema(
    [
        ("k", pa.string()),
        ("w", pa.int64()),
        ("seq", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("acts", pa.string()),
        ("load", pa.string()),
    ]
)
BROADCAST_INPUT = pa.schema([(name, pa.int64()) for name in ("place", "name", "number")])
OUTPUT = pa.schema([("k", pa.string()), ("w", pa.int64()), ("what", pa.string()), ("shown", pa.string())])
SEEDS = [int(seed) for seed in os.environ.get("CKPT_LIVES", "4,5,6,7,8,9,10,11,14").split(",")]
"""One of each program, or others: those of a failure, say."""
START_MS = 1_800_000_000_000
BATCH_MS = 10_000


class Partition:
    """The only partition of the program."""

    def __init__(self, course: Course, folder: Path, memory_bytes: int) -> None:
        processor = course.program()
        states = with_types(find_states(processor), "life")
        names = INPUTS if course.is_connected else ("",)
        inputs = tuple(Input(name, ("k", "w"), INPUT, ("seq",), time="at") for name in names)
        operator = KeyedOperator(
            "life", inputs, OUTPUT, states, 1, 32768, "", has_watermark=True, memory_bytes=memory_bytes,
            merges_inputs=course.is_connected,
            broadcast=None if course.rules is None else Input("broadcast", (), BROADCAST_INPUT, ("place",)),
        )  # fmt: skip
        self._split = course.split
        self.lab = Lab(folder)
        self._operator, self._processor = operator, processor
        self._row: GroupTimesRow | None = None
        self._mark_ms = 0
        self._attempts = count(1)
        self._version, self._id = 0, None
        self._handle = self.lab.open()

    def restart(self, *, lose_local: bool) -> None:
        self.lab.restart(lose_local=lose_local)
        self._handle = self.lab.open()

    def process(self, batch: int, mark_ms: int, rows: Any, rules: Any) -> list[Line]:  # noqa: ANN401
        """What a batch tells."""
        attempt, call = next(self._attempts), self.lab.server.call
        begun = call("begin", handle=self._handle, version=self._version, id=self._id, attempt=attempt)
        (path,) = (self.lab.local_dir / "tickets").glob(f"{attempt}-*.json")
        clocks = Clocks(mark_ms, START_MS + batch * BATCH_MS, self._mark_ms)
        self._mark_ms = mark_ms
        times = GroupTimes(self._operator, self._row, clocks)
        context = Context(batch, 0, times.processing_ms, times.watermark_ms)
        told: list[Line] = []
        split = [(number, row) for number, some in enumerate(self._split(rows)) for row in some]
        given = [(number, read_rows([row], INPUT, ["k", "w"], "at", "The row")) for number, row in split]
        if rules:
            given.append((BROADCAST, read_rows(rules, BROADCAST_INPUT, (), None, "The rule")))
        with closing(PartitionRun(self._operator, self._processor, read_ticket(path), times, context)) as run:
            for some in run.process(given):
                told += [tuple(row.values()) for row in some.to_pylist()]
        self._row = times.new_row or self._row
        done = call("commit", txn=begun["txn"], files=[], rows={}, num_partitions=1)
        self._version, self._id = done["version"], done["id"]
        return told


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", SEEDS)
def test_a_keyed_program_tells_what_dicts_tell(seed: int, tmp_path: Path) -> None:
    course, draw = Course.of(seed, batches=10), Random(seed)
    partition = Partition(course, tmp_path, draw.choice((1 << 14, 1 << 20)))
    truth, mark_ms = Truth(course), 0
    for batch, rows in enumerate(course.batches):
        rules = None if course.rules is None else course.rules_of(batch)
        expected = Counter(truth.process(batch, mark_ms, rows, rules))
        found = Counter(partition.process(batch, mark_ms, rows, rules))
        assert (expected - found, found - expected) == (Counter(), Counter()), (str(course), batch)
        newest = max(row[3] for row in rows) - DELAY
        mark_ms = max(mark_ms, int(newest.timestamp() * 1000))
        if draw.random() < 0.3:
            partition.restart(lose_local=draw.random() < 0.5)
    partition.lab.server.stores.shut_down()
