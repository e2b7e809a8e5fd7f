"""States against a model: batches of random calls, committed or dropped, read back in later batches."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_ckpt.operators import AggregatingState, MapState, ReducingState, ValueState
from pyspark_ckpt.operators.rows.expiry import index_name
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.format.meta import EMPTY_META, Descriptor
from pyspark_ckpt.state_store.transactions.parts import declare
from tests.labs.length import TIMES
from tests.labs.session_lab import (
    HOUR,
    LONG,
    SPILLED_BEYOND,
    STATES,
    TEXT,
    USERS,
    Batch,
    SessionLab,
    keys_of,
    suffix_of,
)

_numbers = st.integers(-(2**63), 2**63 - 1)
_user = st.sampled_from(USERS)
_some_users = st.sets(_user).map(sorted)
_names = st.sampled_from(["", "a", "b", "\0", "a\0", "ä"])
_calls = st.one_of(
    st.tuples(st.just("value"), st.none() | _numbers),
    st.tuples(st.just("text"), st.none() | st.text(max_size=3)),
    st.tuples(st.just("append"), st.lists(_numbers, max_size=3)),
    st.tuples(st.just("replace"), st.lists(_numbers, max_size=3)),
    st.tuples(st.just("put"), st.dictionaries(_names, _numbers, max_size=3)),
    st.tuples(st.just("remove"), _names),
    st.tuples(st.just("clear"), st.sampled_from(["value", "list", "map"])),
    st.tuples(st.just("clear many"), st.tuples(st.sampled_from(["value", "list", "map"]), _some_users)),
    st.tuples(st.just("replace many"), st.dictionaries(_user, st.none() | st.lists(_numbers, max_size=3))),
    st.tuples(st.just("look"), st.none()),
)
_batches = st.lists(
    st.tuples(st.booleans(), st.booleans(), st.lists(st.tuples(st.sampled_from(USERS), _calls), max_size=12)),
    max_size=5,
)


class Model:
    """What the states of all keys must be."""

    def __init__(self) -> None:
        self.value: dict[str, int] = {}
        self.text: dict[str, str] = {}
        self.list: dict[str, list[int]] = defaultdict(list)
        self.map: dict[str, dict[str, int]] = defaultdict(dict)

    def copy(self) -> Model:
        other = Model()
        other.value, other.text = dict(self.value), dict(self.text)
        other.list.update({key: list(each) for key, each in self.list.items()})
        other.map.update({key: dict(each) for key, each in self.map.items()})
        return other

    def rows(self) -> int:
        lists = sum(len(each) + 1 for each in self.list.values() if each)
        return len(self.value) + len(self.text) + lists + sum(map(len, self.map.values()))

    def do(self, user: str, call: str, given: Any) -> None:  # noqa: ANN401
        if call in ("value", "text"):
            kept = getattr(self, call)
            kept.pop(user, None)
            if given is not None:
                kept[user] = given
        elif call == "append":
            self.list[user].extend(given)
        elif call == "replace":
            self.list[user] = list(given)
        elif call == "put":
            self.map[user].update(given)
        elif call == "remove":
            self.map[user].pop(given, None)
        elif call == "clear":
            getattr(self, given).pop(user, None)
        elif call in ("clear many", "replace many"):
            self.do_many(call, given)

    def do_many(self, call: str, given: Any) -> None:  # noqa: ANN401
        if call == "replace many":
            self.list.update({each: list(elements or ()) for each, elements in given.items()})
            return
        name, users = given
        for each in users:
            getattr(self, name).pop(each, None)


def do(states: dict[str, Any], call: str, given: Any) -> None:  # noqa: ANN401
    if call in ("value", "text"):
        states[call].update(given)
    elif call == "append":
        states["list"].add_all(given)
    elif call == "replace":
        states["list"].update(given)
    elif call == "put":
        states["map"].put_all(given)
    elif call == "remove":
        states["map"].remove(given)
    elif call == "clear":
        states[given].clear()
    elif call == "clear many":
        states[given[0]].clear_keys(keys_of(given[1]))
    elif call == "replace many":
        keys = keys_of(list(given))
        lists = [given[user] for user in keys.column("user").to_pylist()]
        states["list"].put_lists(keys, pa.array(lists, pa.list_(LONG)))


def check(user: str, states: dict[str, Any], model: Model) -> None:
    assert states["value"].value() == model.value.get(user)
    assert states["value"].exists() == (user in model.value)
    assert states["text"].value() == model.text.get(user, "none")
    assert list(states["list"].get()) == model.list[user]
    assert states["list"].exists() == bool(model.list[user])
    entries = sorted(model.map[user].items(), key=lambda entry: entry[0].encode())
    assert list(states["map"].items()) == entries
    assert list(states["map"].keys()) == [key for key, _ in entries]
    assert list(states["map"].values()) == [value for _, value in entries]
    assert states["map"].is_empty() == (not entries)
    assert list(states["map"].items("a", "ä")) == [
        entry for entry in entries if b"a" <= entry[0].encode() < "ä".encode()
    ]
    for name in ("a", "nowhere"):
        assert states["map"].get(name, "?") == model.map[user].get(name, "?")
        assert states["map"].contains(name) == (name in model.map[user])


def _is_there(kept: Any) -> bool:  # noqa: ANN401
    return kept is not None and kept not in ([], {})


def check_many(states: dict[str, Any], model: Model) -> None:
    keys = keys_of(USERS)
    users = keys.column("user").to_pylist()
    assert states["value"].get(keys).to_pylist() == [model.value.get(user) for user in users]
    assert states["list"].get_lists(keys).to_pylist() == [model.list.get(user, []) for user in users]
    for name in ("value", "text", "list", "map"):
        assert states[name].exists_keys(keys).to_pylist() == [
            _is_there(getattr(model, name).get(user)) for user in users
        ]


@pytest.mark.in_turn
@settings(max_examples=40 * TIMES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches=_batches, most_held_bytes=st.sampled_from(SPILLED_BEYOND))
def test_states_are_as_a_model_says_when_batches_commit_or_are_dropped(
    batches: list[Any], most_held_bytes: int | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lab = SessionLab(Path(folder), STATES)
        lab.most_held_bytes = most_held_bytes
        try:
            model = Model()
            for commits, reads_ahead, calls in batches:
                batch, states = lab.begin()
                attempted = model.copy()
                for user, (call, given_value) in calls:
                    batch.at(user, USERS if reads_ahead else ())
                    do(states, call, given_value)
                    attempted.do(user, call, given_value)
                    check(user, states, attempted)
                    check_many(states, attempted)
                if commits:
                    batch.stage()
                    answer = batch.commit()
                    lab.version, lab.id = answer["version"], answer["id"]
                    model = attempted
                    assert sum(state["rows"] for state in answer["states"]) == model.rows(), "row counts are exact"
                else:
                    batch.stage()
                    batch.abort()
            batch, states = lab.begin()
            for user in USERS:
                batch.at(user)
                check(user, states, model)
            batch.abort()
        finally:
            lab.close()


def test_a_large_map_is_read_and_cleared_in_little_memory(lab: SessionLab) -> None:
    count, limit = 50_000, 2 << 20

    def write(batch: Batch, states: dict[str, Any]) -> None:
        batch.at("user 1")
        states["map"].put_all({f"{n:06}": n for n in range(count)})

    lab.run(write)
    batch, states = lab.begin()
    batch.at("user 1")
    tracemalloc.start()
    try:
        assert sum(1 for _ in states["map"].items()) == count
        states["map"].clear()
        assert states["map"].is_empty()
        assert states["map"].get("000001") is None
        states["map"].put("000002", 7)
        assert list(states["map"].items()) == [("000002", 7)]
        batch.stage()
        assert tracemalloc.get_traced_memory()[1] < limit < count * 50
    finally:
        tracemalloc.stop()
    assert lab.commit(batch)["states"][3]["rows"] == 1

    def clear(batch: Batch, states: dict[str, Any]) -> None:
        batch.at("user 1")
        states["map"].clear()

    assert [state["rows"] for state in lab.run(clear)["states"]] == [0] * 4


def test_large_lists_and_maps_of_many_keys_are_cleared_in_little_memory(lab: SessionLab) -> None:
    count, limit = 50_000, 2 << 20
    keys = keys_of(USERS[:2])
    index = np.repeat(np.arange(2), count // 2)
    numbers = pa.array(range(count), LONG)

    def write(_batch: Batch, states: dict[str, Any]) -> None:
        states["list"].add_rows(keys, index, numbers)
        states["map"].put_entries(keys, index, pa.array([f"{n:06}" for n in range(count)]), numbers)

    lab.run(write)
    batch, states = lab.begin()
    tracemalloc.start()
    try:
        for name in ("list", "map"):
            assert states[name].exists_keys(keys).to_pylist() == [True, True]
            states[name].clear_keys(keys)
            assert states[name].exists_keys(keys).to_pylist() == [False, False]
        states["list"].put_lists(keys, pa.array([[1, 2], None], pa.list_(LONG)))
        batch.stage()
        assert tracemalloc.get_traced_memory()[1] < limit < count * 50
    finally:
        tracemalloc.stop()
    assert [state["rows"] for state in lab.commit(batch)["states"]] == [0, 0, 3, 0]


@pytest.mark.parametrize("most_held_bytes", SPILLED_BEYOND)
def test_entries_are_those_of_the_beginning_when_others_are_written_meanwhile(
    most_held_bytes: int | None, lab: SessionLab
) -> None:
    lab.most_held_bytes = most_held_bytes

    def write(batch: Batch, states: dict[str, Any]) -> None:
        entries = states["map"]
        batch.at("user 0")
        entries.clear()
        for number in range(20):
            entries.put(f"{number:02}", number)
        begun = entries.items()
        first = next(begun)
        for number in range(0, 20, 2):
            entries.remove(f"{number:02}")
            entries.put(f"{number:02}!", number)
        assert [first, *begun] == [(f"{number:02}", number) for number in range(20)]
        assert [number for _, number in entries.items()] == list(range(20))

    for _ in range(2):
        lab.run(write)


def test_a_map_larger_than_what_is_read_of_it_is_read_lazily(lab: SessionLab) -> None:
    def write(batch: Batch, states: dict[str, Any]) -> None:
        batch.at("user 1")
        states["map"].put_all({f"{n:06}": n for n in range(20_000)})

    lab.run(write)
    batch, states = lab.begin()
    batch.at("user 1")
    entries = states["map"].items("010000")
    assert next(entries) == ("010000", 10_000)
    assert next(states["map"].items()) == ("000000", 0), "two scans do not meet"
    assert next(entries) == ("010001", 10_001)
    batch.abort()


def test_a_reduction_that_is_none_is_refused() -> None:
    with pytest.raises(
        InvalidInputError, match=r"ReducingState 'most': reduce must be .*'sum', 'min', 'max'.*, got 'mean'"
    ):
        ReducingState("most", "bigint", "mean")  # type: ignore[arg-type]


def test_reducing_and_aggregating_states_keep_one_row(tmp_path: Path) -> None:
    states = {
        "most": (ReducingState("most", "bigint", max), {"value": LONG}),
        "mean": (
            AggregatingState(
                "mean",
                "struct<n bigint, total bigint>",
                create=lambda: (0, 0),
                add=lambda kept, value: (kept.n + 1, kept.total + value) if kept != (0, 0) else (1, value),
                result=lambda kept: kept.total / kept.n,
            ),
            {"accumulator": pa.struct([("n", LONG), ("total", LONG)])},
        ),
    }
    lab = SessionLab(tmp_path, states)

    def add(*values: int) -> Any:  # noqa: ANN401
        def work(batch: Batch, bound: dict[str, Any]) -> None:
            batch.at("a")
            for value in values:
                bound["most"].add(value)
                bound["mean"].add(value)
            seen.append((bound["most"].get(), bound["mean"].get()))
            batch.at("b")
            assert bound["most"].get() is None
            assert bound["mean"].get() is None

        return work

    seen: list[Any] = []
    lab.run(add(3, 9))
    lab.run(add(6))
    assert seen == [(9, 6.0), (9, 6.0)]
    lab.close()


def test_a_value_of_another_type_names_state_type_and_value(lab: SessionLab) -> None:
    batch, states = lab.begin()
    batch.at("a")
    with pytest.raises(InvalidInputError, match=r"'value' of .* its value is of type int64, but 'many' \(str\) is not"):
        states["value"].update("many")
    with pytest.raises(InvalidInputError, match=r"'map' of .* its key is of type string, but 3 \(int\) is not"):
        states["map"].put(3, 3)
    with pytest.raises(InvalidInputError, match="a map key must not be None"):
        states["map"].put(None, 3)
    with pytest.raises(InvalidInputError, match=r"2 values are given for 1 keys"):
        states["value"].put(keys_of(["a"]), pa.array([1, 2]))
    with pytest.raises(InvalidInputError, match=r"'value' of .* its value is of type int64"):
        states["value"].put(keys_of(["a"]), pa.array(["x"]))
    batch.abort()


def test_a_declared_state_that_is_not_bound_says_so() -> None:
    with pytest.raises(LifecycleError, match="'value' is used outside of a processor"):
        ValueState("value", "bigint").value()


def test_keys_whose_turn_is_over_are_staged_and_forgotten_and_the_others_are_kept(tmp_path: Path) -> None:
    states: dict[str, Any] = {
        **STATES,
        "timed": (MapState("timed", "string", "bigint", ttl="1 hour"), {"key": TEXT, "value": LONG}),
    }
    lab = SessionLab(tmp_path, states)
    ordered = sorted(USERS, key=suffix_of)

    def write(start: int) -> Any:  # noqa: ANN401
        def work(batch: Batch, bound: dict[str, Any]) -> None:
            for number, user in enumerate(ordered, start):
                batch.at(user, ordered)
                bound["value"].update(number)
                bound["list"].add(number)
                bound["map"].put("a", number)
                bound["timed"].put("a", number)
                if number % 2:
                    batch.flush(suffix_of(user) + b"\xff")

        return work

    lab.run(write(0), now_ms=0)
    answer = lab.run(write(100), now_ms=2 * HOUR)
    count = len(ordered)
    assert [state["rows"] for state in answer["states"]] == [count, 0, 3 * count, count, count, 0]
    assert lab.stored_rows(index_name("timed")) == count, "one for each row that is left"
    assert answer["metrics"]["expired_rows"] == count, "those of the first batch"
    batch, bound = lab.begin(2 * HOUR)
    for number, user in enumerate(ordered):
        batch.at(user)
        assert bound["value"].value() == 100 + number
        assert list(bound["list"].get()) == [number, 100 + number]
        assert dict(bound["map"].items()) == {"a": 100 + number}
        assert dict(bound["timed"].items()) == {"a": 100 + number}
    batch.abort()
    lab.close()


@pytest.mark.parametrize("change", ["value_schema", "key_schema", "key_encoder"])
def test_a_state_whose_descriptor_changes_is_refused_by_name(change: str) -> None:
    meta, _ = declare(EMPTY_META, [("it/total", Descriptor(value_schema="long", key_schema={"k": "string"}))])
    declare(meta, [("it/total", Descriptor(value_schema="long", key_schema={"k": "string"}))])
    changed = msgspec.structs.replace(
        Descriptor(value_schema="long", key_schema={"k": "string"}), **{change: {"k": "int"}}
    )
    with pytest.raises(InvalidInputError, match=f"'it/total' is stored with {change} .* declares {{'k': 'int'}}"):
        declare(meta, [("it/total", changed)])
