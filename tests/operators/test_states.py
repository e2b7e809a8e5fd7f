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

from pyspark_ckpt.operators import AggregatingState, ListState, MapState, ReducingState, Ttl, ValueState
from pyspark_ckpt.operators.keys import Keys
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError
from pyspark_ckpt.state_store.meta import EMPTY_META, Descriptor
from pyspark_ckpt.state_store.parts import declare
from tests.operators.session_lab import Batch, SessionLab, suffix_of

LONG, TEXT = pa.int64(), pa.string()
USERS = [f"user {n}" for n in range(6)]

STATES = {
    "value": (ValueState("value", "bigint"), {"value": LONG}),
    "text": (ValueState("text", "string", default="none"), {"value": TEXT}),
    "list": (ListState("list", "bigint"), {"element": LONG}),
    "map": (MapState("map", "string", "bigint"), {"key": TEXT, "value": LONG}),
}

_numbers = st.integers(-(2**63), 2**63 - 1)
_names = st.sampled_from(["", "a", "b", "\0", "a\0", "ä"])
_calls = st.one_of(
    st.tuples(st.just("value"), st.none() | _numbers),
    st.tuples(st.just("text"), st.none() | st.text(max_size=3)),
    st.tuples(st.just("append"), st.lists(_numbers, max_size=3)),
    st.tuples(st.just("replace"), st.lists(_numbers, max_size=3)),
    st.tuples(st.just("put"), st.dictionaries(_names, _numbers, max_size=3)),
    st.tuples(st.just("remove"), _names),
    st.tuples(st.just("clear"), st.sampled_from(["value", "list", "map"])),
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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches=_batches)
def test_states_are_as_a_model_says_when_batches_commit_or_are_dropped(batches: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lab = SessionLab(Path(folder), STATES)
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


@pytest.fixture
def lab(tmp_path: Path) -> Any:  # noqa: ANN401 - a generator
    made = SessionLab(tmp_path, STATES)
    yield made
    made.close()


def keys_of(users: list[str]) -> Keys:
    ordered = sorted(users, key=suffix_of)
    return Keys(pa.table({"user": ordered}), [suffix_of(user) for user in ordered])


def test_values_of_many_keys_are_those_of_single_keys(lab: SessionLab) -> None:
    keys = keys_of(USERS)
    numbers = pa.array([1, None, 3, 4, None, 6], LONG)

    def write(_batch: Batch, states: dict[str, Any]) -> None:
        assert states["value"].get(keys).null_count == len(USERS)
        states["value"].put(keys, numbers)
        states["text"].put(keys, pa.array(["a", "b", None, "d", "e", "f"]))
        assert states["value"].get(keys).equals(numbers)

    answer = lab.run(write)
    assert [state["rows"] for state in answer["states"][:2]] == [4, 5]

    def read(batch: Batch, states: dict[str, Any]) -> None:
        some = keys_of(USERS[2:4])
        batch.at(str(keys.column("user")[0]))
        states["value"].update(100)
        assert states["value"].get(keys).to_pylist() == [100, None, 3, 4, None, 6]
        states["value"].put(some, pa.array([None, 7], LONG))
        for number, user in enumerate(keys.column("user").to_pylist()):
            batch.at(user)
            assert states["value"].value() == states["value"].get(keys)[number].as_py()

    answer = lab.run(read)
    batch, states = lab.begin()
    found = states["value"].get(keys)
    assert answer["states"][0]["rows"] == len(found) - found.null_count
    batch.abort()


def test_lists_and_maps_of_many_keys_are_those_of_single_keys(lab: SessionLab) -> None:
    keys = keys_of(USERS[:3])
    index = np.array([0, 2, 0, 2, 2])

    def write(_batch: Batch, states: dict[str, Any]) -> None:
        states["list"].add_rows(keys, index, pa.array([1, 2, 3, 4, 5], LONG))
        states["map"].put_entries(keys, index, pa.array(["a", "b", "a", "c", "d"]), pa.array([1, 2, 3, 4, None], LONG))
        assert states["list"].get_lists(keys).to_pylist() == [[1, 3], [], [2, 4, 5]]

    assert [state["rows"] for state in lab.run(write)["states"]] == [0, 0, 7, 3]

    def read(batch: Batch, states: dict[str, Any]) -> None:
        states["list"].add_rows(keys, np.array([1, 0]), pa.array([9, 8], LONG))
        assert states["list"].get_lists(keys).to_pylist() == [[1, 3, 8], [9], [2, 4, 5]]
        assert states["map"].get_range(keys).to_pylist() == [[("a", 3)], [], [("b", 2), ("c", 4)]]
        assert states["map"].get_range(keys, "b", "c").to_pylist() == [[], [], [("b", 2)]]
        found = states["map"].get_entries(keys, np.array([0, 1, 2, 2]), pa.array(["a", "a", "b", "d"]))
        assert found.to_pylist() == [3, None, 2, None]
        batch.at(keys.column("user")[2].as_py())
        assert dict(states["map"].items()) == {"b": 2, "c": 4}
        assert list(states["list"].get()) == [2, 4, 5]

    assert [state["rows"] for state in lab.run(read)["states"]] == [0, 0, 10, 3]


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


@pytest.mark.parametrize("how", ["sum", "min", "max", lambda kept, added: kept * 2 + added])
def test_reducing_states_of_many_keys_are_those_of_one_after_the_other(how: Any, tmp_path: Path) -> None:  # noqa: ANN401
    pair = {name: (ReducingState(name, "bigint", how), {"value": LONG}) for name in ("one", "many")}
    lab = SessionLab(tmp_path, pair)
    suffixes = sorted(map(suffix_of, USERS))
    keys = Keys(pa.table({"user": USERS}), suffixes)
    rng = np.random.default_rng(3)

    def work(batch: Batch, bound: dict[str, Any]) -> None:
        index = rng.integers(0, 4, 30)
        values = [None if value == 0 else value for value in rng.integers(-5, 5, 30).tolist()]
        for position, value in zip(index.tolist(), values, strict=True):
            batch.session.position.suffix = suffixes[position]
            bound["one"].add(value)
        bound["many"].add_rows(keys, index, pa.array(values, LONG))
        assert bound["many"].get_values(keys) == bound["one"].get_values(keys)
        assert bound["many"].get_values(keys)[4:] == pa.nulls(2, LONG)

    for _ in range(3):
        lab.run(work)
    batch, bound = lab.begin()
    with pytest.raises(InvalidInputError, match="State 'one': 1 values are given for 2"):
        bound["one"].add_rows(keys, np.array([0, 1]), pa.array([1]))
    if how == "sum":
        with pytest.raises(InvalidInputError, match="State 'one': a sum of its values is none of type int64: overflow"):
            bound["one"].add_rows(keys, np.array([0, 0]), pa.array([1 << 62, 1 << 62]))
    batch.abort()
    lab.close()


def test_a_reduction_that_is_none_is_refused() -> None:
    with pytest.raises(
        InvalidInputError, match=r"ReducingState 'most': it reduces by 'mean', neither .*'sum', 'min', 'max'"
    ):
        ReducingState("most", "bigint", "mean")  # type: ignore[arg-type]


def test_accumulators_of_many_keys_are_those_of_one_after_the_other(tmp_path: Path) -> None:
    def declared(name: str) -> AggregatingState:
        return AggregatingState(
            name,
            "struct<n bigint, total bigint>",
            create=lambda: None,
            add=lambda kept, value: (1, value) if kept is None else (kept.n + 1, kept.total + value),
            result=lambda kept: kept.total / kept.n,
        )

    kinds = {"accumulator": pa.struct([("n", LONG), ("total", LONG)])}
    lab = SessionLab(tmp_path, {name: (declared(name), kinds) for name in ("one", "many")})
    suffixes = sorted(map(suffix_of, USERS))
    keys = Keys(pa.table({"user": USERS}), suffixes)

    def work(batch: Batch, bound: dict[str, Any]) -> None:
        index, values = np.array([3, 1, 3, 3]), [5, 6, 7, 8]
        for position, value in zip(index.tolist(), values, strict=True):
            batch.session.position.suffix = suffixes[position]
            bound["one"].add(value)
        bound["many"].add_rows(keys, index, pa.chunked_array([[5], [6, 7, 8]]))
        assert bound["many"].get_results(keys) == bound["one"].get_results(keys)
        assert [result is None for result in bound["many"].get_results(keys)] == [True, False, True, False, True, True]

    for _ in range(2):
        lab.run(work)
    lab.close()


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
    with pytest.raises(InvalidInputError, match=r"'value': its value is of type int64, and 'many' is not"):
        states["value"].update("many")
    with pytest.raises(InvalidInputError, match=r"'map': its key is of type string, and 3 is not"):
        states["map"].put(3, 3)
    with pytest.raises(InvalidInputError, match=r"no entry under None"):
        states["map"].put(None, 3)
    with pytest.raises(InvalidInputError, match=r"2 values are given for 1 keys"):
        states["value"].put(keys_of(["a"]), pa.array([1, 2]))
    with pytest.raises(InvalidInputError, match=r"'value': its value is of type int64"):
        states["value"].put(keys_of(["a"]), pa.array(["x"]))
    batch.abort()


def test_a_declared_state_that_is_not_bound_says_so() -> None:
    with pytest.raises(LifecycleError, match="'value' is used outside of a processor"):
        ValueState("value", "bigint").value()


HOUR = 3_600_000


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_rows_are_not_seen_when_their_time_is_over_and_are_freed(kind: str, tmp_path: Path) -> None:
    states: dict[str, Any] = {
        "value": (ValueState("value", "bigint", ttl="8 hours"), {"value": LONG}),
        "list": (ListState("list", "bigint", ttl="8 hours"), {"element": LONG}),
        "map": (MapState("map", "string", "bigint", ttl="8 hours"), {"key": TEXT, "value": LONG}),
    }
    lab = SessionLab(tmp_path, {kind: states[kind]})

    def write(user: str, value: int) -> Any:  # noqa: ANN401
        def work(batch: Batch, bound: dict[str, Any]) -> None:
            batch.at(user)
            if kind == "map":
                bound[kind].put(str(value), value)
            else:
                getattr(bound[kind], "update" if kind == "value" else "add")(value)

        return work

    def look(user: str, now_ms: int) -> list[int]:
        batch, bound = lab.begin(now_ms)
        batch.at(user)
        if kind == "value":
            found = [] if bound[kind].value() is None else [bound[kind].value()]
        else:
            found = list(bound[kind].get() if kind == "list" else bound[kind].values())
            assert bool(found) == (bound[kind].exists() if kind == "list" else not bound[kind].is_empty())
        batch.abort()
        return found

    lab.run(write("a", 1), now_ms=0)
    lab.run(write("b", 2), now_ms=2 * HOUR)
    lab.run(write("a", 3), now_ms=4 * HOUR)
    both = [3] if kind == "value" else [1, 3]
    assert look("a", 8 * HOUR - 1) == both
    assert look("a", 8 * HOUR) == [3], "the first write is over, but for a value that was written anew"
    assert look("b", 10 * HOUR) == []
    assert look("a", 12 * HOUR) == []

    answer = lab.run(lambda _batch, _bound: None, now_ms=9 * HOUR)
    assert answer["metrics"]["expired_rows"] == (0 if kind == "value" else 1)
    answer = lab.run(lambda _batch, _bound: None, now_ms=30 * HOUR)
    assert [state["rows"] for state in answer["states"]] == [0, 0], "rows and index are freed"
    lab.run(write("a", 5), now_ms=31 * HOUR)
    assert look("a", 32 * HOUR) == [5]
    lab.close()


def test_rows_live_on_when_reads_refresh_them(tmp_path: Path) -> None:
    ttl = Ttl("8 hours", refresh="on_read_and_write")
    lab = SessionLab(tmp_path, {"value": (ValueState("value", "bigint", ttl=ttl), {"value": LONG})})
    keys = keys_of(["a", "b"])
    lab.run(lambda _batch, bound: bound["value"].put(keys, pa.array([1, 2])), now_ms=0)

    def read(batch: Batch, bound: dict[str, Any]) -> None:
        batch.at("a")
        assert bound["value"].value() == 1

    for hour in (6, 12, 18):
        lab.run(read, now_ms=hour * HOUR)
    batch, bound = lab.begin(20 * HOUR)
    assert bound["value"].get(keys).to_pylist() == [
        1 if each == "a" else None for each in keys.column("user").to_pylist()
    ]
    batch.abort()
    lab.close()


def test_sweeping_goes_on_in_later_batches_when_much_has_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_ckpt.operators.partition_task.LEAST_SWEPT", 10)
    lab = SessionLab(tmp_path, {"value": (ValueState("value", "bigint", ttl="1 hour"), {"value": LONG})})
    keys = keys_of([f"{n}" for n in range(25)])
    lab.run(lambda _batch, bound: bound["value"].put(keys, pa.array(range(25), LONG)), now_ms=0)
    freed = [lab.run(lambda _batch, _bound: None, now_ms=3 * HOUR)["metrics"]["expired_rows"] for _ in range(4)]
    assert freed == [10, 10, 5, 0]
    lab.close()


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
    assert [state["rows"] for state in answer["states"]] == [count, 0, 3 * count, count, count, count]
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
