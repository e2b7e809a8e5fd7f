"""Calls for the current key where there is none: they are refused by name, and write nothing."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ckpt.operators import (
    AggregatingState,
    Context,
    KeyedProcessor,
    ListState,
    MapState,
    ReducingState,
    Timers,
    ValueState,
    VectorContext,
    VectorProcessor,
)
from pyspark_ckpt.operators.bound.declared_states import DeclaredStates
from pyspark_ckpt.operators.bound.one_key_calls import MANY_KEY_CALLS, ONE_KEY_CALLS
from pyspark_ckpt.operators.declarations.operator import ProcessorState
from pyspark_ckpt.operators.declarations.processors import find_states
from pyspark_ckpt.operators.declarations.states import Declared
from pyspark_ckpt.operators.types.value_types import ValueType
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.labs.session_lab import LONG, TEXT, Batch, SessionLab


class States:
    """One of each kind."""

    value = ValueState("value", "bigint")
    list = ListState("list", "bigint")
    map = MapState("map", "string", "bigint", ttl="1 hour")
    sum = ReducingState("sum", "bigint", "sum")
    mean = AggregatingState("mean", "bigint", create=int, add=lambda kept, value: kept + value, result=str)
    idle = Timers("idle", clock="event")


class Vectorised(States, VectorProcessor):
    """Of all keys at once."""

    def process_batch(self, _ctx: VectorContext, _batch: pa.Table) -> None:
        """Not called."""

    def process_timers(self, _ctx: VectorContext, _timers: pa.Table) -> None:
        """Not called."""


class Single(States, KeyedProcessor):
    """Of one key after the other."""

    def process(self, _ctx: Context, _key: Any, _rows: Any) -> None:  # noqa: ANN401
        """Not called."""

    def on_timer(self, _ctx: Context, _key: Any, _timer: Any) -> None:  # noqa: ANN401
        """Not called."""


def _kinds(state: Declared) -> dict[str, pa.DataType]:
    return {what: TEXT if what == "key" else LONG for what in state.types}


def _bound(processor: Any, batch: Batch) -> Any:  # noqa: ANN401
    states = tuple(
        ProcessorState(attribute, state, {what: ValueType(None, kind) for what, kind in _kinds(state).items()})
        for attribute, state in find_states(processor).items()
    )
    return DeclaredStates("it", states).bind(processor, batch.session)[0]


@pytest.fixture
def states_lab(tmp_path: Path) -> Any:  # noqa: ANN401 - a generator
    declared = {f"it/{state.name}": (state, _kinds(state)) for state in find_states(Single()).values()}
    made = SessionLab(tmp_path, declared)
    yield made
    made.close()


def _calls() -> list[tuple[str, str]]:
    """Every public call of every kind that is not given keys: by the attribute of the state, and its name."""
    found = []
    for attribute, state in find_states(Single()).items():
        for name, method in inspect.getmembers(type(state), inspect.isfunction):
            takes_keys = list(inspect.signature(method).parameters)[1:2] == ["keys"]
            if not name.startswith("_") and not takes_keys:
                found.append((attribute, name))
    return found


KINDS: dict[str, Any] = {attribute: type(state) for attribute, state in find_states(Single()).items()}

ARGUMENTS: dict[tuple[str, str], tuple[Any, ...]] = {
    ("map", "put"): ("a", 1),
    ("map", "put_all"): ({"a": 1},),
    ("map", "get"): ("a",),
    ("map", "contains"): ("a",),
    ("map", "remove"): ("a",),
    ("list", "add_all"): ([5],),
    ("list", "update"): ([5],),
    **{(state, "add"): (5,) for state in ("list", "sum", "mean")},
    ("value", "update"): (5,),
    ("idle", "register"): (5,),
    ("idle", "delete"): (5,),
}


@pytest.mark.parametrize(("attribute", "call"), _calls())
def test_a_call_for_one_key_is_refused_with_what_to_call_instead_where_there_are_many(
    attribute: str, call: str, states_lab: SessionLab
) -> None:
    batch, _ = states_lab.begin()
    state = getattr(_bound(Vectorised(), batch), attribute)
    kind = type(getattr(States, attribute))
    message = rf"{kind.__name__} '{state.name}' of keyed operator 'it': {call}\(\) is for the current key"
    with pytest.raises(InvalidInputError, match=message) as refused:
        getattr(state, call)(*ARGUMENTS.get((attribute, call), ()))
    assert refused.value.hint == f"Call {ONE_KEY_CALLS[kind][call]}."
    many = ONE_KEY_CALLS[kind][call].partition("(")[0]
    assert list(inspect.signature(getattr(kind, many)).parameters)[1] == "keys", "there is such a call"
    batch.stage()
    assert {state["rows"] for state in states_lab.commit(batch)["states"]} == {0}


@pytest.mark.parametrize(
    ("attribute", "call"), [(each, call) for each, kind in KINDS.items() for call in MANY_KEY_CALLS[kind]]
)
def test_a_call_for_many_keys_is_refused_with_what_to_call_instead_where_there_is_one(
    attribute: str, call: str, states_lab: SessionLab
) -> None:
    batch, _ = states_lab.begin()
    batch.at("a")
    state, kind = getattr(_bound(Single(), batch), attribute), KINDS[attribute]
    message = rf"{kind.__name__} '{state.name}' of keyed operator 'it': {call}\(\) is for many keys"
    with pytest.raises(InvalidInputError, match=message) as refused:
        getattr(state, call)()
    assert refused.value.hint == f"Call {MANY_KEY_CALLS[kind][call]}."
    assert all(hasattr(kind, each.partition("(")[0]) for each in MANY_KEY_CALLS[kind][call].split(" or "))
    batch.abort()


def test_every_call_for_many_keys_has_one_for_the_current_key() -> None:
    for kind in KINDS.values():
        functions = dict(inspect.getmembers(kind, inspect.isfunction))
        of_keys = {
            name for name, each in functions.items() if list(inspect.signature(each).parameters)[1:2] == ["keys"]
        }
        assert of_keys == set(MANY_KEY_CALLS[kind])


def test_a_state_is_no_truth_value(states_lab: SessionLab) -> None:
    batch, _ = states_lab.begin()
    batch.at("a")
    for attribute in KINDS:
        state = getattr(_bound(Single(), batch), attribute)
        with pytest.raises(InvalidInputError, match=f"State '{state.name}' is used as a truth value"):
            bool(state)
    batch.abort()


@pytest.mark.parametrize(("attribute", "call"), _calls())
def test_a_call_before_the_first_key_is_refused(attribute: str, call: str, states_lab: SessionLab) -> None:
    batch, _ = states_lab.begin()
    state = getattr(_bound(Single(), batch), attribute)
    with pytest.raises(InvalidInputError, match="no key is being processed"):
        list(getattr(state, call)(*ARGUMENTS.get((attribute, call), ())))
    batch.at("a")
    getattr(state, call)(*ARGUMENTS.get((attribute, call), ()))
    batch.abort()
