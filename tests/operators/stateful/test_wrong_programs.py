"""A program that does what it may not do fails its task with an error that names it, the key and the value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StructType
from typing_extensions import override

from pyspark_ckpt import KeyedProcessor, ListState, MapState, ValueState
from pyspark_ckpt.operators.declarations.ttl import Clock
from pyspark_ckpt.operators.stateful.declarations import find_variables
from pyspark_ckpt.operators.stateful.frame_form import FrameForm, WideConversion
from pyspark_ckpt.operators.stateful.processor import make_calls
from pyspark_ckpt.operators.stateful.row_form import RowForm
from pyspark_ckpt.state_store.errors import CkptError
from tests.labs.task_lab import Batch, TaskLab
from tests.operators.stateful_program import START, START_MS

OUTPUT = pa.schema([("n", pa.int64())])
NUMBER = StructType().add("n", LongType())
ENOUGH = 1 << 30


class Calls(StatefulProcessor):
    """Makes one call for each key."""

    def __init__(self, call: Callable[[Any, Any], Any], *, later: bool = False) -> None:
        self.call = call
        self.later = later

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", NUMBER)
        self.list = handle.getListState("list", NUMBER)
        self.map = handle.getMapState("map", NUMBER, NUMBER)
        self.calls = 0

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        self.calls += 1
        return self.call(self, rows)


def _run(folder: Path, program: StatefulProcessor, clock: Clock | None = None, *, of_frames: bool = False) -> Batch:
    variables = find_variables(program, clock, "it")
    form = (
        FrameForm(StructType().add("n", LongType()), WideConversion("UTC", False, True, False, False, 10_000))
        if of_frames
        else RowForm(OUTPUT, "UTC")
    )
    lab = TaskLab(folder, make_calls(program, list(variables.values()), clock, form, "it"), OUTPUT)
    try:
        rows = [("ada", 1, START, "x")]
        return lab.run(rows, watermark_ms=0, now_ms=START_MS, memory_bytes=ENOUGH)
    finally:
        lab.close()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda p, _: p.value.update(5), "State variable 'value' is given 5 of type int"),
        (lambda p, _: p.value.update((1, 2)), r"State 'value' has the fields \['n'\], but \(1, 2\) has 2 values"),
        (lambda p, _: p.value.update(("a",)), "State 'value': its field 'n' of type int64 cannot hold 'a'"),
        (lambda p, _: p.list.put([]), "State variable 'list': an empty list is given"),
        (lambda p, _: p.list.appendList([]), "State variable 'list': an empty list is given"),
        (lambda p, _: p.list.appendValue(None), "State variable 'list' is given None of type NoneType"),
        (lambda p, _: p.map.updateValue((1,), None), "State variable 'map' is given None"),
        (lambda p, _: p.map.getValue(1), "State variable 'map' is given 1 of type int"),
        (lambda p, _: p.handle.registerTimer(1), r"Calls calls registerTimer\(\), but there are no timers"),
        (lambda p, _: p.handle.getValueState("late", NUMBER), r"Calls calls getValueState\(\) after init\(\)"),
        (lambda _, __: None, r"Calls.handleInputRows\(\) of keyed operator 'it' returned None of type NoneType, not"),
        (lambda _, __: [5], r"handleInputRows\(\) of keyed operator 'it' returned 5 of type int in place of a Row"),
        (lambda _, __: [Row("a")], "returned <Row.*a.*> of type Row, which has no field names"),
        (lambda _, __: [Row(N=1)], r"returned Row\(N=1\) of type Row, but the output has no column 'N'"),
        (
            lambda _, __: [Row(n="a")],
            "returned a row whose column 'n' is 'a' of type str; the output's is of type",
        ),
        (
            lambda _, rows: 1 // len(list(rows)[1:]),
            r"Calls.handleInputRows\(\) .* failed for key .*ada",
        ),
    ],
)
def test_a_wrong_call_or_result_says_what_is_wrong(call: Any, text: str, quick_path: Path) -> None:  # noqa: ANN401
    with pytest.raises(CkptError, match=text):
        _run(quick_path, Calls(call))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda _, rows: next(rows), "returned a pandas.DataFrame, not an iterable of them"),
        (lambda _, __: [5], "returned int in place of a pandas.DataFrame"),
        (lambda _, rows: [frame[["user"]] for frame in rows], r"returned frames of \['user'\]; the output has \['n'\]"),
    ],
)
def test_a_wrong_frame_says_what_is_wrong(call: Any, text: str, quick_path: Path) -> None:  # noqa: ANN401
    with pytest.raises(CkptError, match=text):
        _run(quick_path, Calls(call), of_frames=True)


class Sometimes(StatefulProcessor):
    """Declares a state variable in tasks that it did not declare before."""

    times = 0

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        Sometimes.times += 1
        if Sometimes.times > 1:
            handle.getListState("late", NUMBER)

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return iter(())


def test_a_variable_that_is_declared_under_a_condition_is_refused(quick_path: Path) -> None:
    with pytest.raises(CkptError, match=r"init\(\) declares the list state 'late' in a task, but it did not when"):
        _run(quick_path, Sometimes())


class Closes(Calls):
    """Uses a state when there is no key."""

    @override
    def close(self) -> None:
        if self.calls:
            self.value.get()


def test_a_state_cannot_be_used_without_a_key(quick_path: Path) -> None:
    with pytest.raises(CkptError, match="no key is being processed"):
        _run(quick_path, Closes(lambda _, rows: [Row(n=len(list(rows)))]))


class Same(KeyedProcessor):
    """The same states, in a program of another kind."""

    value = ValueState("value", NUMBER)
    list = ListState("list", NUMBER)
    map = MapState("map", StructType().add("n", LongType()), NUMBER)

    def process(self, _ctx: Any, _key: Any, _rows: Any) -> Any:  # noqa: ANN401
        (entry,) = self.map.items()
        yield (self.value.value().n * 100 + sum(each.n for each in self.list.get()) * 10 + entry[0].n + entry[1].n,)


def test_its_states_are_those_of_any_keyed_operator(quick_path: Path) -> None:
    def write(program: Any, _rows: Any) -> Any:  # noqa: ANN401
        program.value.update((3,))
        program.list.appendList([(1,), (1,)])
        program.map.updateValue((2,), (3,))
        return ()

    program = Calls(write)
    variables = find_variables(program, None, "it")
    lab = TaskLab(quick_path, make_calls(program, list(variables.values()), None, RowForm(OUTPUT, "UTC"), "it"), OUTPUT)
    try:
        rows = [("ada", 1, START, "x")]
        done = lab.run(rows, watermark_ms=0, now_ms=START_MS, memory_bytes=ENOUGH)
        assert done.stored == {"it/list": 3, "it/map": 1, "it/value": 1}
        lab.change(Same())
        assert lab.run(rows, watermark_ms=0, now_ms=START_MS, memory_bytes=ENOUGH).rows == [(325,)]
    finally:
        lab.close()
