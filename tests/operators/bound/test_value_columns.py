"""Values that are read and written in columns, as a model says, among those that are read and written one by one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_ckpt.operators.declarations.reducing_states import ReducingState
from pyspark_ckpt.operators.declarations.states import ValueState
from pyspark_ckpt.operators.session import worker as worker_session
from pyspark_ckpt.state_store.sst import lookup
from tests.labs.length import TIMES
from tests.labs.session_lab import (
    HOUR,
    LONG,
    SPILLED_BEYOND,
    TEXT,
    USERS,
    SessionLab,
    keys_of,
    suffix_of,
    take_turns,
)

STATES = {
    "value": (ValueState("value", "bigint"), {"value": LONG}),
    "text": (ValueState("text", "string"), {"value": TEXT}),
    "short": (ValueState("short", "bigint", ttl="1 hour"), {"value": LONG}),
    "sum": (ReducingState("sum", "bigint", "sum"), {"value": LONG}),
}
Model: TypeAlias = dict[str, dict[str, Any]]
_users = st.lists(st.sampled_from(USERS), unique=True, min_size=1)
_numbers = st.one_of(st.none(), st.integers(0, 99))
_calls = st.one_of(
    st.tuples(st.just("put"), _users, st.lists(_numbers, min_size=len(USERS), max_size=len(USERS))),
    st.tuples(st.just("again"), _numbers),
    st.tuples(st.just("update"), st.sampled_from(USERS), _numbers),
    st.tuples(st.just("get"), _users),
    st.tuples(st.just("get_again")),
    st.tuples(st.just("flush"), st.sampled_from(USERS)),
)
_batches = st.lists(st.tuples(st.booleans(), st.lists(_calls, max_size=6)), max_size=5)


def of_kind(name: str, number: int | None) -> Any:  # noqa: ANN401
    return str(number) * (number % 3 + 1) if name == "text" and number is not None else number


class Turns:
    """What some calls do to the states, and to a model of them."""

    def __init__(self, batch: Any, states: dict[str, Any], model: Model) -> None:  # noqa: ANN401
        self.batch, self.states, self.model = batch, states, model
        self.keys = keys_of(USERS)

    def put(self, users: list[str], numbers: list[int | None]) -> None:
        self.keys = keys_of(users)
        self._put(dict(zip(self.keys.column("user").to_pylist(), numbers, strict=False)))

    def again(self, number: int | None) -> None:
        """The same keys as before, as a processor has them."""
        self._put(dict.fromkeys(self.keys.column("user").to_pylist(), number))

    def _put(self, numbers: dict[str, int | None]) -> None:
        for name in self.states:
            state, kinds = STATES[name]
            (kind,) = kinds.values()
            values = [of_kind(name, number) for number in numbers.values()]
            if isinstance(state, ReducingState):
                self.states[name].add_rows(self.keys, pa.array(range(len(values))).to_numpy(), pa.array(values, kind))
                for user, value in zip(numbers, values, strict=True):
                    if value is not None:
                        self.model[name][user] = self.model[name].get(user, 0) + value
            else:
                self.states[name].put(self.keys, pa.array(values, kind))
                self.model[name].update(zip(numbers, values, strict=True))

    def update(self, user: str, number: int | None) -> None:
        self.batch.at(user)
        for name in self.states.keys() - {"sum"}:
            self.states[name].update(of_kind(name, number))
            self.model[name][user] = of_kind(name, number)
            assert self.states[name].value() == of_kind(name, number)

    def get(self, users: list[str]) -> None:
        self.keys = keys_of(users)
        self._check()

    def get_again(self) -> None:
        """The same keys as before."""
        self._check()

    def flush(self, user: str) -> None:
        self.batch.flush(suffix_of(user))

    def _check(self) -> None:
        for name in self.states:
            got = self.states[name].get_values(self.keys) if name == "sum" else self.states[name].get(self.keys)
            assert got.to_pylist() == [self.model[name].get(user) for user in self.keys.column("user").to_pylist()]


@pytest.mark.in_turn
@pytest.mark.parametrize("names", [("value", "sum"), tuple(STATES)])
def test_columns_of_values_are_as_a_model_says(names: tuple[str, ...]) -> None:
    with (
        patch.object(lookup, "MIN_KEYS", 1),
        patch.object(worker_session, "MIN_KEYS", 1),
    ):
        run({name: STATES[name] for name in names})


@settings(max_examples=50 * TIMES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches=_batches, most_held_bytes=st.sampled_from(SPILLED_BEYOND))
def run(declared: dict[str, Any], batches: list[Any], most_held_bytes: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lab = SessionLab(Path(folder), declared)
        lab.most_held_bytes = most_held_bytes
        try:
            model: Model = {name: {} for name in declared}
            for now_ms, (commits, calls) in enumerate(batches, HOUR):
                batch, states = lab.begin(now_ms)
                turns = Turns(batch, states, {name: dict(each) for name, each in model.items()})
                take_turns(turns, calls)
                batch.stage()
                if commits:
                    model = turns.model
                    rows = {each["name"]: each["rows"] for each in lab.commit(batch)["states"]}
                    for name, values in model.items():
                        assert rows[name] == sum(value is not None for value in values.values())
                else:
                    batch.abort()
            batch, states = lab.begin(HOUR + 10)
            Turns(batch, states, model).get(USERS)
            batch.abort()
        finally:
            lab.close()


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.float64(), pa.timestamp("us", "UTC")])
def test_the_values_of_one_key_are_where_arrow_wants_them(kind: pa.DataType, tmp_path: Path) -> None:
    names = {"value": None, "short": "1 hour"}
    lab = SessionLab(
        tmp_path, {name: (ValueState(name, "bigint", ttl=ttl), {"value": kind}) for name, ttl in names.items()}
    )
    keys = keys_of(["a"])
    given_values = pa.array([7], pa.int64() if kind == pa.float64() else kind).cast(kind)

    def write(_batch: Any, bound: dict[str, Any]) -> None:  # noqa: ANN401
        for name in names:
            bound[name].put(keys, given_values)

    lab.run(write)
    batch, bound = lab.begin()
    for name in names:
        found = bound[name].get(keys)
        assert found.equals(given_values)
        assert found.buffers()[1].address % 8 == 0
    batch.abort()
    lab.close()
