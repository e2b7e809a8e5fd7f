"""States of keyed operators: what is read is what was stored."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pyspark_ckpt
from pyspark_ckpt.operators.declarations.reducing_states import AggregatingState, ReducingState
from pyspark_ckpt.operators.declarations.states import ListState, MapState, ValueState
from pyspark_ckpt.operators.declarations.timers import Timer, Timers
from pyspark_ckpt.operators.declarations.ttl import Ttl
from pyspark_ckpt.operators.types.columns import python_values
from pyspark_ckpt.operators.types.value_types import hashable
from pyspark_ckpt.reading import open_state
from pyspark_ckpt.state_store.format.meta import TimeToLive
from tests.offline.reading.conftest import MakeWritten
from tests.offline.reading.written import UID, Written
from tests.operators.kinds import ALL, ORDERED

LONG, TEXT = pa.int64(), pa.string()
HOUR = 3_600_000
USERS = [(f"user {n}",) for n in range(9)]

few = settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))

STATES: Any = {
    "value": (ValueState("value", "bigint"), {"value": LONG}),
    "list": (ListState("list", "string"), {"element": TEXT}),
    "map": (MapState("map", "string", "bigint"), {"key": TEXT, "value": LONG}),
    "most": (ReducingState("most", "bigint", "max"), {"value": LONG}),
    "mean": (
        AggregatingState(
            "mean",
            "struct<n bigint>",
            create=lambda: (0,),
            add=lambda kept, _: (kept[0] + 1,),
            result=lambda kept: kept,
        ),
        {"accumulator": pa.struct([("n", LONG)])},
    ),
    "due": (Timers("due", clock="event"), {}),
}


def work(number: int) -> Any:  # noqa: ANN401
    def of_key(states: Any) -> None:  # noqa: ANN401
        states.value.update(number)
        states.list.add_all([f"{number}.{n}" for n in range(number)])
        states.map.put_all({"a": number, "b": -number})
        states.most.add(number)
        states.mean.add(number)
        states.due.register(1000 * number, "soon")

    return of_key


@pytest.fixture
def written(make_written: MakeWritten) -> Written:
    """Two batches over three partitions, a snapshot between them; the second changes, adds and clears."""
    made = make_written({"user": TEXT}, partitions=3)
    made.batch(STATES, [(user, work(n)) for n, user in enumerate(USERS[:8])])
    made.snapshot()
    made.batch(
        STATES,
        {
            USERS[0]: lambda states: states.value.update(100),
            USERS[3]: lambda states: (states.value.clear(), states.list.clear(), states.map.remove("a")),
            USERS[8]: work(8),
        }.items(),
    )
    return made


def expected() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {
        "value": {user: n for n, (user,) in enumerate(USERS)},
        "list": {user: [f"{n}.{i}" for i in range(n)] for n, (user,) in enumerate(USERS)},
        "map": {user: {"a": n, "b": -n} for n, (user,) in enumerate(USERS)},
        "most": {user: n for n, (user,) in enumerate(USERS)},
        "mean": {user: (1,) for (user,) in USERS},
        "due": {user: [Timer("due", "soon", 1000 * n)] for n, (user,) in enumerate(USERS)},
    }
    found["value"].update({"user 0": 100, "user 3": None})
    found["list"]["user 3"] = []
    del found["map"]["user 3"]["a"]
    return found


@pytest.mark.parametrize("name", STATES)
def test_one_key_is_what_the_program_stored(name: str, written: Written) -> None:
    with open_state(written.path, uid=UID, state=name) as state:
        assert {user: state.get(user) for (user,) in USERS} == expected()[name]
        assert state.rows_of("nobody").num_rows == 0
        assert state.get(("nobody",)) in (None, [], {})


def test_all_rows_are_what_the_program_stored(written: Written) -> None:
    of = expected()
    users = [user for (user,) in USERS]
    with open_state(written.path, uid=UID) as found:
        assert {state.name: (state.kind, state.uid) for state in found.states} == {
            "value": ("ValueState", UID),
            "list": ("ListState", UID),
            "map": ("MapState", UID),
            "most": ("ReducingState", UID),
            "mean": ("AggregatingState", UID),
            "due": ("Timers", UID),
        }
    rows: dict[str, set[Any]] = {
        "value": {(user, of["value"][user]) for user in users if of["value"][user] is not None},
        "list": {(user, n, element) for user in users for n, element in enumerate(of["list"][user])},
        "map": {(user, key, value) for user in users for key, value in of["map"][user].items()},
        "most": {(user, of["most"][user]) for user in users},
        "mean": {(user, of["mean"][user]) for user in users},
        "due": {(user, timer.at, timer.at_ms, "soon", "event") for user in users for timer in of["due"][user]},
    }
    for name, expected_rows in rows.items():
        with open_state(written.path, uid=UID, state=name) as state:
            table = state.to_arrow()
            assert table.schema == state.schema
            columns = [python_values(column.combine_chunks()) for column in table.columns[:-3]]
            shown = [(key.user, *rest) for key, *rest in zip(*columns, strict=True)]
            assert len(shown) == len(set(shown)) == state.count() == len(expected_rows)
            assert set(shown) == expected_rows
            for key, partition, group, key_hash in zip(
                columns[0], *(table[at].to_pylist() for at in ("partition", "key_group", "hash")), strict=True
            ):
                assert partition == written.partition_of(key)
                assert int.from_bytes(written.suffix(key)[:4], "big", signed=True) == key_hash
                assert group * 3 // 128 == partition


def test_an_earlier_version_is_read_as_it_was(written: Written) -> None:
    with open_state(written.path, uid=UID, state="value", version=1) as state:
        assert state.get("user 0") == 0
        assert state.get("user 3") == 3
        assert sorted(state.to_pandas()["value"]) == list(range(8))


def test_a_version_whose_batch_is_not_committed_is_refused(make_written: MakeWritten) -> None:
    made = make_written({"user": TEXT})
    states: Any = {"value": (ValueState("value", "bigint"), {"value": LONG})}
    made.batch(states, [(("a",), lambda bound: bound.value.update(5))])
    made.batch(states, [(("a",), lambda bound: bound.value.update(6))], is_killed=True)
    with pytest.raises(pyspark_ckpt.InvalidInputError, match="no version 2: there are 1 to 1"):
        open_state(made.path, version=2)
    with open_state(made.path) as state:
        assert (state.version, state.get("a")) == (1, 5)
    made.batch(states, [(("a",), lambda bound: bound.value.update(7))])
    with open_state(made.path, version=2) as state:
        assert state.get("a") == 7, "the retry's, which the commit log names"


@pytest.mark.in_turn
@few
@given(data=st.data())
def test_values_of_every_type_are_read_as_they_were_stored(data: st.DataObject, tmp_path_factory: Any) -> None:  # noqa: ANN401
    values = {name: data.draw(st.lists(drawn, min_size=1, max_size=4)) for name, (_, drawn) in ALL.items()}
    states: Any = {}
    for name, (kind, _) in ALL.items():
        states[f"v {name}"] = (ValueState(f"v {name}", "void"), {"value": kind})
        states[f"l {name}"] = (ListState(f"l {name}", "void"), {"element": kind})
    for name, (kind, _) in ORDERED.items():
        states[f"m {name}"] = (MapState(f"m {name}", "void", "bigint"), {"key": kind, "value": LONG})

    def write(bound: Any) -> None:  # noqa: ANN401
        for name, drawn in values.items():
            getattr(bound, f"v {name}").update(drawn[0])
            getattr(bound, f"l {name}").add_all(drawn)
            if name in ORDERED:
                getattr(bound, f"m {name}").put(drawn[0], 7)

    made = Written(tmp_path_factory.mktemp("types"), {"user": TEXT})
    try:
        made.batch(states, [(("a",), write)])
        for name, drawn in values.items():
            for prefix, stored in (("v", drawn[0]), ("l", drawn)):
                with open_state(made.path, uid=UID, state=f"{prefix} {name}") as state:
                    assert state.get("a") == stored
            if name in ORDERED:
                with open_state(made.path, uid=UID, state=f"m {name}") as state:
                    assert state.get("a") == {hashable(drawn[0]): 7}
    finally:
        made.close()


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ORDERED)
def test_keys_of_every_type_are_read_and_found(name: str, make_written: MakeWritten) -> None:
    kind, drawn = ORDERED[name]
    made = make_written({"k": kind, "other": LONG}, partitions=2)
    keys = []

    @settings(max_examples=8, deadline=None, derandomize=True, database=None)
    @given(drawn)
    def draw(value: Any) -> None:  # noqa: ANN401
        keys.append(value)

    draw()
    numbered = {made.suffix((key, n % 2)): (key, n % 2) for n, key in enumerate([None, *keys])}
    states: Any = {"value": (ValueState("value", "bigint"), {"value": LONG})}
    plain = list(numbered.items())
    made.batch(states, [(key, partial(_update, number=n)) for n, (_, key) in enumerate(plain)])
    with open_state(made.path, uid=UID) as state:
        assert [state.get(key) for _, key in plain] == list(range(len(plain)))
        assert state.count() == len(plain)
        table = state.to_arrow()
        found = zip(python_values(table["key"].combine_chunks()), table["value"].to_pylist(), strict=True)
        assert {made.suffix(key): value for key, value in found} == {suffix: n for n, (suffix, _) in enumerate(plain)}


def _update(states: Any, number: int) -> None:  # noqa: ANN401
    states.value.update(number)


def test_rows_with_a_time_to_live_say_when_they_expire(make_written: MakeWritten) -> None:
    made = make_written({"user": TEXT})
    ttl = Ttl("2 hours", clock="event")
    states: Any = {
        "value": (ValueState("value", "bigint", ttl=ttl), {"value": LONG}),
        "list": (ListState("list", "bigint", ttl=ttl), {"element": LONG}),
        "map": (MapState("map", "string", "bigint", ttl=ttl), {"key": TEXT, "value": LONG}),
    }

    def add(number: int) -> Any:  # noqa: ANN401
        return lambda bound: (bound.value.update(number), bound.list.add(number), bound.map.put(str(number), number))

    made.batch(states, [(("early",), add(1)), (("both",), add(1))], HOUR)
    made.batch(states, [(("both",), add(2))], 2 * HOUR)
    at = [datetime.fromtimestamp(hours * 3600, timezone.utc) for hours in range(5)]
    for name, both in (("value", [2]), ("list", [1, 2]), ("map", [1, 2])):
        with open_state(made.path, uid=UID, state=name) as state:
            assert state.state.ttl == TimeToLive(2 * HOUR, "on_create_and_write", "event")
            (row,) = state.rows_of("early").to_pylist()
            assert (row["value"], row["written_at"], row["expires_at"]) == (1, at[1], at[3])
            rows = state.rows_of("both").to_pylist()
            assert [row["value"] for row in rows] == both
            assert [row["expires_at"] for row in rows] == [at[value + 2] for value in both]
            assert state.count() == len(rows) + 1 == len(state.to_arrow())
    # the watermark that a batch without rows brings: nothing is freed, for no task of the operator runs
    made.batch(states, [], 3 * HOUR)
    for name in states:
        with open_state(made.path, uid=UID, state=name, include_expired=False) as state:
            assert state.get("early") in (None, [], {})
            assert [row["value"] for row in state.rows_of("both").to_pylist()] == [2]
            assert state.count() == 1
    (made.lab.checkpoint / "offsets" / "2").unlink()
    with (
        open_state(made.path, uid=UID, state="value", include_expired=False) as state,
        pytest.raises(pyspark_ckpt.NotFoundError, match="offsets/2 is missing"),
    ):
        state.count()


def test_a_time_to_live_that_has_changed_is_that_of_each_partition(make_written: MakeWritten) -> None:
    made = make_written({"user": TEXT}, partitions=2)
    (first,), (second,) = (next(user for user in USERS if made.partition_of(user) == n) for n in range(2))

    def write(ttl: str, now_ms: int, *users: str) -> None:
        states: Any = {"value": (ValueState("value", "bigint", ttl=Ttl(ttl)), {"value": LONG})}
        made.batch(states, [((user,), lambda bound: bound.value.update(1)) for user in users], now_ms)

    write("30 days", HOUR, first, second)
    write("1 hour", 2 * HOUR, second)  # the worker of the other partition is not called
    write("1 hour", 12 * HOUR)
    with open_state(made.path) as state:
        lives = {row["key"]["user"]: row["expires_at"] for row in state.to_arrow().to_pylist()}
        hours = {user: at.timestamp() / 3600 for user, at in lives.items()}
        assert hours == {first: 30 * 24 + 1, second: 3}
    with open_state(made.path, include_expired=False) as state:
        assert (state.get(first), state.get(second), state.count()) == (1, None, 1)


def test_rows_do_not_expire_in_partitions_whose_program_has_no_time_to_live_any_more(make_written: MakeWritten) -> None:
    made = make_written({"user": TEXT}, partitions=2)
    (first,), (second,) = (next(user for user in USERS if made.partition_of(user) == n) for n in range(2))

    def write(ttl: str | None, now_ms: int, *users: str) -> None:
        states: Any = {"value": (ValueState("value", "bigint", ttl=ttl), {"value": LONG})}
        made.batch(states, [((user,), lambda bound: bound.value.update(1)) for user in users], now_ms)

    write("1 hour", HOUR, first, second)
    write(None, 2 * HOUR, second)
    write(None, 12 * HOUR)
    with open_state(made.path, include_expired=False) as state:
        assert (state.get(first), state.get(second), state.count()) == (None, 1, 1)
    write(None, 2 * HOUR, first)
    with open_state(made.path, include_expired=False) as state:
        assert state.state.ttl is None
        assert "expires_at" not in state.schema.names
        assert (state.get(first), state.get(second), state.count()) == (1, 1, 2)


def test_the_only_state_of_a_program_is_meant_though_spark_keeps_one_beside_it(make_written: MakeWritten) -> None:
    made = make_written({"user": TEXT}, partitions=2)
    made.has_sparks_state = True
    one: Any = {"value": STATES["value"]}
    made.batch(one, [(user, lambda bound: bound.value.update(7)) for user in USERS])
    for named in ({}, {"operator": 0}, {"uid": UID}):
        with open_state(made.path, **named) as state:
            assert state.get("user 1") == 7
            assert state.state.name == "value"
            assert state.count() == len(USERS)
    with open_state(made.path) as state:
        assert sorted(each.name for each in state.states) == ["default", "value"]
    with open_state(made.path, state="default") as state:
        assert state.state.uid is None
    made.batch({**one, "list": STATES["list"]}, [(USERS[0], lambda bound: bound.list.add("x"))])
    with (
        open_state(made.path) as state,
        pytest.raises(pyspark_ckpt.InvalidInputError, match="has 2 states: "),
    ):
        _ = state.state


def test_values_of_former_types_are_read_as_the_newest_when_a_partition_has_not_seen_it(
    make_written: MakeWritten,
) -> None:
    made = make_written({"user": TEXT}, partitions=3)
    first, second = (next(user for user in USERS if made.partition_of(user) == partition) for partition in (1, 2))
    old: Any = {"value": (ValueState("value", "void"), {"value": pa.struct([("n", pa.int32()), ("gone", TEXT)])})}
    renamed = ValueState("value", "void", aliases={"number": "n"})
    new: Any = {"value": (renamed, {"value": pa.struct([("number", LONG), ("more", TEXT)])})}
    made.batch(
        old, [(first, lambda bound: bound.value.update((1, "x"))), (second, lambda bound: bound.value.update((2, "y")))]
    )
    made.batch(new, [(second, lambda bound: bound.value.update((2**40, "z")))])
    with open_state(made.path, uid=UID) as state:
        values = python_values(state.to_arrow()["value"].combine_chunks())
        assert sorted(values) == [(1, None), (2**40, "z")]
    with open_state(made.path, uid=UID) as state:  # another one: nothing is known of the partitions
        (shown, missing) = state.get(first), state.get("nobody")
        assert (shown._asdict(), missing) == ({"number": 1, "more": None}, None)
        assert state.get(second) == (2**40, "z")
    with open_state(made.path, uid=UID, version=1) as state:
        assert state.get(second) == (2, "y")


def test_a_field_that_was_renamed_twice_is_read_when_each_program_knew_one_name(make_written: MakeWritten) -> None:
    made = make_written({"user": TEXT}, partitions=1)
    users = USERS[:3]
    former: str | None = None
    for user, name in zip(users, ("first", "second", "third"), strict=True):
        renamed = ValueState("value", "void", aliases={name: former} if former else None)
        kinds: Any = {"value": (renamed, {"value": pa.struct([(name, LONG)])})}
        if former == "second":
            made.batch(kinds, [(users[0], lambda bound: bound.value.update((bound.value.value().third + 1,)))])
        made.batch(kinds, [(user, lambda bound: bound.value.update((7,)))])
        former = name
    with open_state(made.path, uid=UID) as state:
        assert [state.get(user) for user in users] == [(8,), (7,), (7,)]
