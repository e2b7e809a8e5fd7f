"""Maps that are read and written in columns, as a model says, among entries that are read and written one by one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_ckpt.operators import MapState, Ttl
from pyspark_ckpt.operators.rows import entry_rows, key_rows, state_rows
from pyspark_ckpt.operators.rows.expiry import index_name
from pyspark_ckpt.operators.session import worker as worker_session
from pyspark_ckpt.state_store.sst import lookup
from tests.labs.length import TIMES
from tests.labs.session_lab import (
    HOUR,
    LONG,
    SPILLED_BEYOND,
    TEXT,
    USERS,
    Batch,
    SessionLab,
    keys_of,
    suffix_of,
    take_turns,
)

MINUTE = HOUR // 60
ENTRIES = ["", "a", "a\0", "ab", "b"]
STATES: dict[str, tuple[MapState, dict[str, pa.DataType]]] = {
    "kept": (MapState("kept", "string", "bigint"), {"key": TEXT, "value": LONG}),
    "short": (MapState("short", "string", "bigint", ttl="1 hour"), {"key": TEXT, "value": LONG}),
    "read": (
        MapState("read", "string", "bigint", ttl=Ttl("1 hour", refresh="on_read_and_write")),
        {"key": TEXT, "value": LONG},
    ),
}
Model: TypeAlias = dict[str, dict[tuple[str, str], tuple[int, int]]]
"""Of each state, for each user and entry, its value and when its life began."""

_users, _entries = st.sampled_from(USERS[:4]), st.sampled_from(ENTRIES)
_numbers = st.one_of(st.none(), st.integers(0, 99))
_bounds = st.one_of(st.none(), _entries)
_rows = st.lists(st.tuples(_users, _entries, _numbers), max_size=8)
_calls = st.one_of(
    st.tuples(st.just("put_entries"), _rows),
    st.tuples(st.just("put_entries"), _rows),
    st.tuples(st.just("get_entries"), _rows),
    st.tuples(st.just("get_then_put"), _rows),
    st.tuples(st.just("put"), _users, _entries, _numbers),
    st.tuples(st.just("clear"), _users),
    st.tuples(st.just("clear_keys"), st.sets(_users)),
    st.tuples(st.just("exists_keys"), st.sets(_users)),
    st.tuples(st.just("contains_entries"), _rows),
    st.tuples(st.just("get_range"), st.dictionaries(_users, st.tuples(_bounds, _bounds), max_size=4)),
    st.tuples(st.just("items"), _users),
    st.tuples(st.just("flush"), _users),
)
_batches = st.lists(st.tuples(st.integers(0, 50), st.booleans(), st.lists(_calls, max_size=6)), max_size=7)


class Turns:
    """What some calls do to the states, and to a model of them."""

    def __init__(self, batch: Batch, states: dict[str, Any], model: Model, now_ms: int) -> None:
        self.batch, self.states, self.model, self.now_ms = batch, states, model, now_ms

    def _living(self, name: str, place: tuple[str, str]) -> int | None:
        """What is seen; reading refreshes some."""
        found = self.model[name].get(place)
        if found is None or (name != "kept" and found[1] <= self.now_ms - HOUR):
            return None
        if name == "read":
            self.model[name][place] = (found[0], self.now_ms)
        return found[0]

    def _set(self, place: tuple[str, str], number: int | None) -> None:
        for name in self.model:
            if number is None:
                self.model[name].pop(place, None)
            else:
                self.model[name][place] = (number, self.now_ms)

    def put_entries(self, rows: list[tuple[str, str, int | None]]) -> None:
        keys, index, entries, numbers = _columns(rows)
        for state in self.states.values():
            state.put_entries(keys, index, entries, numbers)
        for user, entry, number in rows:
            self._set((user, entry), number)

    def get_entries(self, rows: list[tuple[str, str, int | None]]) -> None:
        keys, index, entries, _ = _columns(rows)
        for name, state in self.states.items():
            expected = [self._living(name, (user, entry)) for user, entry, _ in rows]
            assert state.get_entries(keys, index, entries).to_pylist() == expected

    def get_then_put(self, rows: list[tuple[str, str, int | None]]) -> None:
        self.get_entries(rows)
        self.put_entries(rows)

    def put(self, user: str, entry: str, number: int | None) -> None:
        self.batch.at(user)
        for name, state in self.states.items():
            assert state.get(entry) == self._living(name, (user, entry))
            if number is None:
                state.remove(entry)
            else:
                state.put(entry, number)
        self._set((user, entry), number)

    def clear(self, user: str) -> None:
        self.batch.at(user)
        for name, state in self.states.items():
            state.clear()
            self.model[name] = {place: row for place, row in self.model[name].items() if place[0] != user}

    def clear_keys(self, users: set[str]) -> None:
        for name, state in self.states.items():
            state.clear_keys(keys_of(sorted(users)))
            self.model[name] = {place: row for place, row in self.model[name].items() if place[0] not in users}

    def exists_keys(self, users: set[str]) -> None:
        keys = keys_of(sorted(users))
        for name, state in self.states.items():
            expected = [  # the first one that is there is read
                any(self._living(name, (user, entry)) is not None for entry in ENTRIES)
                for user in keys.column("user").to_pylist()
            ]
            assert state.exists_keys(keys).to_pylist() == expected

    def contains_entries(self, rows: list[tuple[str, str, int | None]]) -> None:
        keys, index, entries, _ = _columns(rows)
        for name, state in self.states.items():
            expected = [self._living(name, (user, entry)) is not None for user, entry, _ in rows]
            assert state.contains_entries(keys, index, entries).to_pylist() == expected

    def get_range(self, bounds: dict[str, tuple[str | None, str | None]]) -> None:
        keys = keys_of(sorted(bounds))
        ordered = [bounds[user] for user in keys.column("user").to_pylist()]
        begin, end = (pa.array([each[n] for each in ordered], TEXT) for n in range(2))
        for name, state in self.states.items():
            expected = []
            for user, (first, last) in zip(keys.column("user").to_pylist(), ordered, strict=True):
                inside = [each for each in ENTRIES if each >= (first or "") and (last is None or each < last)]
                seen = [(entry, self._living(name, (user, entry))) for entry in inside]
                expected.append([each for each in seen if each[1] is not None])
            assert state.get_range(keys, begin, end).to_pylist() == expected

    def items(self, user: str) -> None:
        self.batch.at(user)
        for name, state in self.states.items():
            seen = [(entry, self._living(name, (user, entry))) for entry in ENTRIES]
            assert list(state.items()) == [each for each in seen if each[1] is not None]

    def flush(self, user: str) -> None:
        self.batch.flush(suffix_of(user))


def _columns(rows: list[tuple[str, str, int | None]]) -> tuple[Any, Any, pa.Array, pa.Array]:
    keys = keys_of(sorted({user for user, _, _ in rows}))
    places = {user: place for place, user in enumerate(keys.column("user").to_pylist())}
    index = np.array([places[user] for user, _, _ in rows], np.int64)
    return keys, index, pa.array([entry for _, entry, _ in rows], TEXT), pa.array([n for _, _, n in rows], LONG)


@pytest.mark.in_turn
@pytest.mark.parametrize(("most", "small_calls"), [(0, 8), (4, 8), (4, 0)])
def test_entries_are_as_a_model_says(most: int, small_calls: int) -> None:
    with (
        patch.object(lookup, "MIN_KEYS", 1),
        patch.object(worker_session, "MIN_KEYS", 1),
        patch.object(entry_rows, "MAX_WRITES", most),
        patch.object(key_rows, "MAX_COLUMNS", most),
        patch.object(state_rows, "MAX_SMALL_CALLS", small_calls),
    ):
        run()


@settings(max_examples=25 * TIMES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches=_batches, most_held_bytes=st.sampled_from(SPILLED_BEYOND))
def run(batches: list[Any], most_held_bytes: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lab = SessionLab(Path(folder), STATES)
        lab.most_held_bytes = most_held_bytes
        try:
            model: Model = {name: {} for name in STATES}
            now_ms = 100 * HOUR
            for minutes, commits, calls in batches:
                now_ms += minutes * MINUTE
                batch, states = lab.begin(now_ms)
                turns = Turns(batch, states, {name: dict(each) for name, each in model.items()}, now_ms)
                take_turns(turns, calls)
                batch.stage()
                if not commits:
                    batch.abort()
                    continue
                model = turns.model
                for state in lab.commit(batch)["states"]:
                    if state["name"] == "kept":
                        assert state["rows"] == len(model["kept"])
                    if state["name"] in model:
                        assert state["rows"] == lab.stored_rows(state["name"]), "the count is exact"
            for hours in (20, 40):
                answer = lab.run(lambda _batch, _states: None, now_ms=now_ms + hours * HOUR)
            left = {state["name"]: lab.stored_rows(state["name"]) for state in answer["states"]}
            assert left["short"] == left["read"] == 0, "all is freed"
            assert lab.stored_rows(index_name("short")) == lab.stored_rows(index_name("read")) == 0
        finally:
            lab.close()
