"""What a StatefulProcessor declares is found when its query is planned, and what it may not do is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StringType, StructType
from typing_extensions import override

from pyspark_ckpt.operators.declarations.states import ListState, MapState, ValueState
from pyspark_ckpt.operators.stateful.declarations import find_clock, find_variables, require_processor
from pyspark_ckpt.state_store.errors import InvalidInputError

NUMBER, TEXT = StructType().add("n", LongType()), StructType().add("t", StringType())
Init = Callable[[StatefulProcessorHandle], Any]


class Declares(StatefulProcessor):
    """Declares what it is told to."""

    def __init__(self, init: Init) -> None:
        self.declare = init
        self.closed = 0

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.declare(handle)

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return iter(())

    @override
    def close(self) -> None:
        self.closed += 1


def test_variables_are_found_on_a_copy() -> None:
    def init(handle: StatefulProcessorHandle) -> None:
        handle.getValueState("v", NUMBER, 0)
        handle.getListState("l", NUMBER, ttlDurationMs=1500)
        handle.getMapState("m", TEXT, NUMBER)
        handle.deleteIfExists("no more")

    program = Declares(init)
    found = find_variables(program, "processing", "it")
    assert {name: type(each) for name, each in found.items()} == {"v": ValueState, "l": ListState, "m": MapState}
    assert [each.ttl and each.ttl.duration_ms for each in found.values()] == [None, 1500, None]
    assert found["m"].types == {"key": TEXT, "value": NUMBER}
    assert program.closed == 0


@pytest.mark.parametrize(
    ("init", "text"),
    [
        (lambda h: [h.getValueState("x", NUMBER), h.getListState("x", NUMBER)], "more than one .* the name 'x'"),
        (lambda h: h.getMapState("$x", NUMBER, NUMBER), r"the name '\$x'"),
        (lambda h: h.getValueState("", NUMBER), "the name ''"),
        (lambda h: h.getValueState("x", LongType()), "the schema of state variable 'x' is LongType.*: give columns"),
        (lambda h: h.getValueState("x", NUMBER, -1), "ttlDurationMs of state variable 'x' is -1, not a positive"),
        (lambda h: h.getValueState("x", NUMBER, 2.5), r"ttlDurationMs of state variable 'x' is 2\.5, not a positive"),
        (lambda h: h.getValueState("x", NUMBER).get(), "init.. uses get of state variable 'x', but no key"),
        (lambda h: h.registerTimer(1), r"init\(\) calls registerTimer\(\), but no key"),
        (lambda h: h.deleteTimer(1), r"init\(\) calls deleteTimer\(\), but no key"),
        (lambda h: h.listTimers(), r"init\(\) calls listTimers\(\), but no key"),
        (lambda h: [h.getValueState("x", NUMBER), h.deleteIfExists("x")], "the state variable 'x', but deletes it"),
        (lambda _: 1 // 0, r"Declares\.init\(\) failed when the query was planned: ZeroDivisionError"),
    ],
)
def test_a_wrong_declaration_is_refused(init: Init, text: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"^it: .*{text}"):
        find_variables(Declares(init), "processing", "it")


def test_times_to_live_need_processing_time() -> None:
    with pytest.raises(InvalidInputError, match="only the timeMode 'ProcessingTime' has times to live"):
        find_variables(Declares(lambda handle: handle.getValueState("x", NUMBER, 5)), "event", "it")


def test_time_modes_are_those_of_spark_in_any_letter_case() -> None:
    assert [find_clock(mode, "it") for mode in ("None", "processingTIME", "EventTime")] == [None, "processing", "event"]
    with pytest.raises(InvalidInputError, match="it: the timeMode is 'soon', not one of"):
        find_clock("soon", "it")


def test_a_class_or_another_object_is_no_processor() -> None:
    with pytest.raises(InvalidInputError, match="the processor is the class Declares"):
        require_processor(Declares, "it")
    with pytest.raises(InvalidInputError, match="the processor is 5, of type int"):
        require_processor(5, "it")
