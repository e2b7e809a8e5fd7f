"""What a program does by mistake with states and rows is refused by name, and says what to do instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from pyspark_ckpt.operators import (
    AggregatingState,
    Context,
    KeyedProcessor,
    ListState,
    MapState,
    MetricCounter,
    ReducingState,
    Timers,
    ValueState,
    VectorProcessor,
    with_states,
)
from pyspark_ckpt.operators.bound.declared_states import DeclaredStates
from pyspark_ckpt.operators.declarations.operator import Input, KeyedOperator, ProcessorState
from pyspark_ckpt.operators.declarations.processors import find_declarations, find_states
from pyspark_ckpt.operators.declarations.states import Declared
from pyspark_ckpt.operators.rows.base import Position
from pyspark_ckpt.operators.task.processor_calls import ProcessorCalls
from pyspark_ckpt.operators.types.value_types import ValueType
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.labs.session_lab import LONG, TEXT, SessionLab

Bind = Callable[[Any], Any]


class All(KeyedProcessor):
    """A state of each kind, timers and a counter."""

    n = ValueState("n", "bigint")
    seen = ListState("seen", "bigint")
    by_word = MapState("by word", "string", "bigint")
    total = ReducingState("total", "bigint", "sum")
    mean = AggregatingState("mean", "bigint", create=int, add=lambda kept, value: kept + value, result=str)
    idle = Timers("idle", clock="event")
    skipped = MetricCounter("skipped")

    def __init__(self) -> None:
        """An attribute of its own."""
        self.own = 1

    def process(self, _ctx: Context, _key: Any, _rows: Any) -> None:  # noqa: ANN401
        """Not called."""


@dataclass(frozen=True)
class Frozen(KeyedProcessor):
    """A frozen dataclass with a parameter, and a state that is a field to the eye of dataclasses."""

    most: int = 3
    n: ValueState = ValueState("n", "bigint")  # noqa: RUF009 - a declaration
    seen = ListState("seen", "bigint")

    def process(self, _ctx: Context, _key: Any, _rows: Any) -> None:  # noqa: ANN401
        """Not called."""


def _kinds(state: Declared) -> dict[str, pa.DataType]:
    return {what: TEXT if what == "key" else LONG for what in state.types}


def _states(holder: object) -> tuple[ProcessorState, ...]:
    return tuple(
        ProcessorState(attribute, state, {what: ValueType(None, kind) for what, kind in _kinds(state).items()})
        for attribute, state in find_declarations(holder).items()
    )


@pytest.fixture
def bound(tmp_path: Path) -> Iterator[Bind]:
    """Gives an object as a task has it, at a key."""
    labs: list[SessionLab] = []

    def bind(holder: Any) -> Any:  # noqa: ANN401
        kept = {f"it/{each.state.name}": (each.state, _kinds(each.state)) for each in _states(holder)}
        lab = SessionLab(
            tmp_path, {name: each for name, each in kept.items() if not isinstance(each[0], MetricCounter)}
        )
        batch, _ = lab.begin()
        batch.at("user 1")
        labs.append(lab)
        return DeclaredStates("it", _states(holder)).bind(holder, batch.session)[0]

    yield bind
    for lab in labs:
        lab.close()


@pytest.mark.parametrize(
    ("attribute", "refused", "hint"),
    [
        ("n", "ValueState 'n' of All was assigned the value 5", "self.n.update(5)"),
        ("seen", "ListState 'seen' of All", "self.seen.update(5)"),
        ("by_word", "MapState 'by word' of All", "self.by_word.put(key, value)"),
        ("total", "ReducingState 'total' of All", "self.total.add(5)"),
        ("mean", "AggregatingState 'mean' of All", "self.mean.add(5)"),
        ("idle", "Timers 'idle' of All", "self.idle.register(5)"),
        ("skipped", "MetricCounter 'skipped' of All", "self.skipped.add(5)"),
    ],
)
def test_an_assignment_to_a_state_is_refused_by_name(attribute: str, refused: str, hint: str, bound: Bind) -> None:
    for processor in (All(), bound(All())):
        before = getattr(processor, attribute)
        with pytest.raises(InvalidInputError, match=re.escape(refused)) as problem:
            setattr(processor, attribute, 5)
        assert hint in problem.value.hint
        with pytest.raises(InvalidInputError, match="was deleted"):
            delattr(processor, attribute)
        assert getattr(processor, attribute) is before
        processor.own = 2
        assert processor.own == 2


def test_an_assignment_to_a_method_of_a_state_is_refused_by_name(bound: Bind) -> None:
    processor = bound(All())
    for attribute, method in (("n", "value"), ("seen", "get"), ("by_word", "put"), ("idle", "register")):
        with pytest.raises(InvalidInputError, match=rf"its method {method}\(\) was assigned the value 5"):
            setattr(getattr(processor, attribute), method, 5)
    processor.n.update(7)
    assert processor.n.value() == 7


def test_a_frozen_dataclass_works(bound: Bind) -> None:
    processor = bound(Frozen(most=5))
    processor.n.update(7)
    processor.seen.add(1)
    assert (processor.most, processor.n.value(), list(processor.seen.get())) == (5, 7, [1])
    with pytest.raises((InvalidInputError, AttributeError)):
        processor.n = 5
    assert processor.n.value() == 7


class Slots:
    """Has no room for what is bound."""

    __slots__ = ()
    n = ValueState("n", "bigint")


class Named(NamedTuple):
    """Neither has this."""

    n: ValueState = ValueState("n", "bigint")


@dataclass(slots=True)
class SlotsOfFields(KeyedProcessor):
    """The state is a slot, and no attribute of the class any more."""

    n: ValueState = ValueState("n", "bigint")  # noqa: RUF009 - a declaration

    def process(self, _ctx: Context, _key: Any, _rows: Any) -> None:  # noqa: ANN401
        """Not called."""


@dataclass
class Made:
    """A state that each instance has for itself."""

    n: ValueState = field(default_factory=lambda: ValueState("n", "bigint"))


class Hidden:
    """An instance whose attributes were set from outside."""

    n = ValueState("n", "bigint")

    def __init__(self) -> None:
        """As what was unpickled may be."""
        self.__dict__["n"] = 5


@pytest.mark.parametrize(
    ("holder", "refused"),
    [
        (Slots(), "Slots has no room for states in its instances"),
        (SlotsOfFields(), "SlotsOfFields declares the state 'n' in an instance"),
        (Made(), "Made declares the state 'n' in an instance"),
        (Hidden(), "Hidden sets its attribute 'n' to 5, but the class declares it as a state"),
    ],
)
def test_what_has_no_room_for_states_is_refused_by_name(holder: object, refused: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(refused)):
        find_declarations(holder)


def test_a_named_tuple_is_refused_by_name() -> None:
    with pytest.raises(InvalidInputError, match="Named"):
        with_states(lambda *_: iter(()), Named(), uid="it")


OUTPUT = pa.schema([("user", pa.string()), ("n", pa.int64())])


class Rows(KeyedProcessor):
    """Gives what it is told to."""

    def __init__(self, give: Any) -> None:  # noqa: ANN401
        """``give(key)``: what a call returns."""
        self.give = give

    def process(self, _ctx: Context, key: Any, _rows: Any) -> Any:  # noqa: ANN401
        """See __init__."""
        return self.give(key)


def run(give: Any, output: pa.Schema = OUTPUT) -> list[Any]:  # noqa: ANN401
    """The rows that come out of two calls."""
    operator = KeyedOperator("it", (Input("", ("user",), OUTPUT),), output, (), 1, 1, "", False, 1 << 20)
    work = ProcessorCalls(operator, Rows(give), Context(0, 0, 0, -1), Position())
    results = (work.processor.process(work.context, key, ()) for key in ("a", "b"))  # type: ignore[union-attr]
    return [row for batch in work._pack("process", results) for row in batch.to_pylist()]


def _yields_and_returns(key: str) -> Iterator[Any]:
    yield key, 1
    return key, 2  # type: ignore[return-value]


def _yields_before_nothing(key: str) -> Iterator[Any]:
    if key == "a":
        return
    yield key, 1
    return None


def _returns_nothing_of_another(key: str) -> Iterator[Any]:
    return (yield from _yields_before_nothing(key))


class OneRow(NamedTuple):
    """A row of the output."""

    user: str
    n: int


ONE = pa.schema([("user", pa.string())])


@pytest.mark.parametrize(
    ("give", "output", "refused"),
    [
        (lambda key: (key, 1), OUTPUT, "returned ('a', 1) (tuple), which looks like one row, not a list of rows"),
        (lambda key: [key, 1], OUTPUT, "returned ['a', 1] (list), which looks like one row, not a list of rows"),
        (
            lambda key: OneRow(key, 1),
            OUTPUT,
            "returned OneRow(user='a', n=1) (OneRow), which looks like one row, not a list of rows",
        ),
        (lambda _: (None, 1), OUTPUT, "returned (None, 1) (tuple), which looks like one row"),
        (lambda _: (np.int64(1), 1), OUTPUT, "(tuple), which looks like one row, not a list of rows"),
        (lambda key: {"user": key, "n": 1}, OUTPUT, "returned {'user': 'a', 'n': 1} (dict) in place of rows"),
        (lambda key: key, ONE, "returned 'a' (str) in place of rows"),
        (lambda _: 5, OUTPUT, "returned 5 (int) in place of rows"),
        (lambda _: True, OUTPUT, "returned True (bool) in place of rows"),
        (lambda key: pd.DataFrame({"user": [key]}), OUTPUT, "returned a DataFrame in place of rows"),
        (lambda key: pa.table({"user": [key]}), OUTPUT, "returned a Table in place of rows"),
        (lambda key: (key,), ONE, "returned ('a',) (tuple), which looks like one row, not a list of rows"),
        (lambda key: iter([key]), ONE, "yielded 'a' (str) in place of a row"),
        (lambda _: iter([5]), ONE, "yielded 5 (int) in place of a row"),
        (lambda _: iter([date(2024, 1, 1)]), ONE, "yielded datetime.date(2024, 1, 1) (date) in place of a row"),
        (_yields_and_returns, OUTPUT, "yields rows, but also returned ('a', 2) (tuple), which would be lost"),
    ],
)
def test_what_is_given_in_place_of_rows_is_explained(give: Any, output: pa.Schema, refused: str) -> None:  # noqa: ANN401
    with pytest.raises(InvalidInputError, match=re.escape(refused)) as problem:
        run(give, output)
    assert "Rows.process() of keyed operator 'it'" in str(problem.value)


@pytest.mark.parametrize(
    ("give", "expected"),
    [
        (lambda _: None, []),
        (lambda _: (), []),
        (lambda _: [], []),
        (lambda key: [(key, 1)], [("a", 1), ("b", 1)]),
        (lambda key: ((key, 1), (key, 2)), [("a", 1), ("a", 2), ("b", 1), ("b", 2)]),
        (lambda key: [{"user": key, "n": 1}], [("a", 1), ("b", 1)]),
        (lambda key: [OneRow(key, 1)], [("a", 1), ("b", 1)]),
        (lambda key: iter([[key, None]]), [("a", None), ("b", None)]),
        (lambda key: {key: (key, 1)}.values(), [("a", 1), ("b", 1)]),
        (_yields_before_nothing, [("b", 1)]),
        (_returns_nothing_of_another, [("b", 1)]),
    ],
)
def test_rows_are_taken_in_every_form(give: Any, expected: list[Any]) -> None:  # noqa: ANN401
    assert [(row["user"], row["n"]) for row in run(give)] == expected


def test_a_comparison_with_a_state_is_refused_by_name(bound: Bind) -> None:
    for program in (All(), bound(All())):
        for other in (0, "x", None):
            with pytest.raises(InvalidInputError, match=r"State 'n' is compared with .*not compare what it holds"):
                assert program.n == other
            with pytest.raises(InvalidInputError, match="State 'n' is compared with"):
                assert program.n != other
        assert program.n == program.n
        assert program.n != program.seen
        assert len({program.n, program.seen}) == 2


def test_what_a_class_has_in_place_of_a_state_of_its_base_is_no_state(bound: Bind) -> None:
    class Fewer(All):
        n = 5  # type: ignore[assignment]
        seen = None  # type: ignore[assignment]

        def total(self) -> int:  # type: ignore[override]
            return 7

    class Again(Fewer):
        n = ValueState("n again", "bigint")  # type: ignore[assignment]

    expected = {"by word", "idle", "mean", "skipped"}
    assert {state.name for state in find_states(_with_timers(Fewer)).values()} == expected
    assert {state.name for state in find_states(_with_timers(Again)).values()} == {*expected, "n again"}
    program = bound(_with_timers(Fewer))
    assert (program.n, program.seen, program.total()) == (5, None, 7)


def _with_timers(kind: type[All]) -> All:
    return type(kind.__name__, (kind,), {"on_timer": lambda *_: None})()  # type: ignore[no-any-return]


def test_a_vector_processor_is_told_the_call_for_many_keys() -> None:
    class Columns(VectorProcessor):
        n = ValueState("n", "bigint")

        def process_batch(self, *_: Any) -> None: ...  # noqa: ANN401

    with pytest.raises(InvalidInputError) as problem:
        Columns().n = 5
    assert "self.n.put(keys, values)" in problem.value.hint


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        (All, "The processor is the class All. Give an instance: All()"),
        (lambda *_: None, "of type function. Give an instance of a class that derives from KeyedProcessor"),
        (object(), "of type object. Give an instance of a class"),
        (None, "The processor is None, of type NoneType. Give an instance"),
    ],
)
def test_what_is_not_a_processor_is_refused_by_what_it_is(given: Any, refused: str) -> None:  # noqa: ANN401
    with pytest.raises(InvalidInputError, match=re.escape(refused)):
        find_states(given)
