"""Whole tasks of a StatefulProcessor, with memory for everything or for nothing, come to what a model says."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructType
from typing_extensions import override

from pyspark_ckpt.operators.declarations.ttl import Clock
from pyspark_ckpt.operators.stateful import row_form, running
from pyspark_ckpt.operators.stateful.declarations import find_variables
from pyspark_ckpt.operators.stateful.processor import make_calls
from pyspark_ckpt.operators.stateful.row_form import RowForm
from tests.labs.task_lab import TaskLab
from tests.operators.stateful_model import Model
from tests.operators.stateful_program import OPERATIONS, START, START_MS, Commands

OUTPUT = pa.schema([("told", pa.string())])
FEW, ENOUGH = 1, 1 << 30
SECOND_MS = 1000
MODES: tuple[tuple[str, Clock | None], ...] = (("none", None), ("processingtime", "processing"), ("eventtime", "event"))


class Tasks(Commands):
    """Commands in the columns of a TaskLab: an operation and its text are one text."""

    def _list(self, rows: Any) -> list[tuple[str, int, str | None]]:  # noqa: ANN401
        given = [(*row.text.split("|"), row.n) for row in rows]
        return [(op, n, text) for op, text, n in given]


def _make_rows(random: Random, count: int) -> list[tuple[str, int, Any, str]]:
    return [
        (
            f"user {random.randrange(12)}",
            random.randrange(-3, 12),
            START,
            f"{random.choice(OPERATIONS)}|{random.choice('abc')}",
        )
        for _ in range(count)
    ]


@pytest.mark.in_turn
@pytest.mark.parametrize("memory_bytes", [FEW, ENOUGH])
@pytest.mark.parametrize(("mode", "clock"), MODES)
@pytest.mark.parametrize("seed", range(2))
def test_tasks_do_what_the_model_does(
    seed: int,
    mode: str,
    clock: Clock | None,
    memory_bytes: int,
    quick_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = Random(seed)
    if memory_bytes == FEW:
        monkeypatch.setattr(running, "KEYS_AT_ONCE", 2)
        monkeypatch.setattr(row_form, "ROWS_AT_ONCE", 3)
    ttl_ms = 4 * SECOND_MS if clock == "processing" else None
    base_ms = START_MS if clock == "event" else None
    program = Tasks(of_frames=False, base_ms=base_ms, unit_ms=SECOND_MS if clock else 0, ttl_ms=ttl_ms)
    variables = find_variables(program, clock, "it")
    calls = make_calls(program, list(variables.values()), clock, RowForm(OUTPUT, "UTC"), "it")
    lab, model = TaskLab(quick_path, calls, OUTPUT), Model(program, mode)
    try:
        for batch in range(8):
            rows = _make_rows(random, random.choice((0, 10, 60)))
            now_ms, watermark_ms = START_MS + 1500 * batch, START_MS + 1100 * batch
            grouped: dict[tuple[Any, ...], list[Row]] = {}
            for user, n, at, text in rows:
                grouped.setdefault((user,), []).append(Row(user=user, n=n, at=at, text=text))
            expected = sorted(row.told for row in model.run(grouped, now_ms, watermark_ms))
            done = lab.run(rows, watermark_ms=watermark_ms, now_ms=now_ms, memory_bytes=memory_bytes)
            assert sorted(told for (told,) in done.rows) == expected
    finally:
        lab.close()


class Changing(StatefulProcessor):
    """Changes what it has read and given, and tells what the state holds then."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        numbers = ArrayType(IntegerType())
        record = StructType().add("a", numbers)
        value = StructType().add("a", numbers).add("m", MapType(StringType(), numbers)).add("s", record)
        self.value = handle.getValueState("value", value)
        self.list = handle.getListState("list", record)
        self.map = handle.getMapState("map", StructType().add("n", IntegerType()), record)

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        if not self.value.exists():
            given = [1]
            self.value.update((given, {"k": given}, Row(a=given)))
            self.list.put([(given,)])
            self.map.updateValue((1,), (given,))
            given.append(2)
        held: Any = (*(self.value.get() or ()), *next(iter(self.list.get())), self.map.getValue((1,)))
        numbers, entries, row, element, found = held
        for each in (numbers, entries["k"], row.a, element, found.a):
            each.append(3)
        entries["other"] = []
        yield Row(told=f"{self.value.get()} {list(self.list.get())} {list(self.map.iterator())}")


def test_what_a_program_does_to_what_it_has_read_changes_no_state(quick_path: Path) -> None:
    program = Changing()
    variables = find_variables(program, None, "it")
    lab = TaskLab(quick_path, make_calls(program, list(variables.values()), None, RowForm(OUTPUT, "UTC"), "it"), OUTPUT)
    try:
        for _ in range(2):
            done = lab.run([("a", 1, START, "")], watermark_ms=0, now_ms=0, memory_bytes=ENOUGH)
            assert done.rows == [("([1], {'k': [1]}, Row(a=[1])) [([1],)] [((1,), ([1],))]",)]
    finally:
        lab.close()
