"""Timers against a model: batches of random calls, committed or dropped, and what fires in them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_ckpt.operators import KeyedProcessor, Timer, Timers, VectorProcessor
from pyspark_ckpt.operators.bound.timers import BoundTimers
from pyspark_ckpt.operators.declarations.processors import find_states
from pyspark_ckpt.operators.declarations.timers import round_up_ms, to_microseconds
from pyspark_ckpt.operators.declarations.ttl import Clock
from pyspark_ckpt.operators.encoding.distinct_keys import Keys
from pyspark_ckpt.operators.encoding.suffixes import Suffixes
from pyspark_ckpt.operators.rows.timer_rows import EXACT, ROUNDED
from pyspark_ckpt.operators.task.firing import Due, Firing
from pyspark_ckpt.operators.task.row_buffer import ranges
from pyspark_ckpt.operators.types.conversions import EPOCH
from pyspark_ckpt.state_store.errors import InvalidInputError, LifecycleError
from tests.labs.length import TIMES
from tests.labs.session_lab import Batch, Kinds, SessionLab, suffix_of

USERS = [f"user {n}" for n in range(6)]
DECLARED: dict[str, tuple[Timers, Kinds]] = {
    "near": (Timers("near", clock="event"), {}),
    "far": (Timers("far", clock="event"), {}),
    "wall": (Timers("wall", clock="processing"), {}),
}

_instants = st.builds(lambda ms, us: 1000 * ms + us, st.integers(-3, 12), st.sampled_from([0, 0, 1, 500, 999]))
"""In microseconds."""
_calls = st.tuples(
    st.sampled_from(USERS),
    st.sampled_from(sorted(DECLARED)),
    st.sampled_from(["register", "register", "register", "delete"]),
    _instants,
    st.sampled_from(["", "ns", "n\0s"]),
)
_batches = st.lists(
    st.tuples(
        st.booleans(),
        st.integers(0, 3),
        st.integers(0, 3),
        st.sampled_from([1 << 20, 1]),
        st.lists(_calls, max_size=12),
    ),
    max_size=6,
)


def given_as(at_us: int) -> datetime | int:
    """An instant as a program gives it."""
    return EPOCH + timedelta(microseconds=at_us) if at_us % 1000 else at_us // 1000


def fire(batch: Batch, timers: Sequence[BoundTimers], limit: int = 1 << 20) -> Iterator[tuple[Due, bytes | None]]:
    """What fires, a range of hashes at a time, each with the end of its range; all is flushed."""
    firing = Firing(timers, batch.session, limit, Path(batch.session._ticket.staging) / "due")
    firing.list_stored()
    for (listed,), end in ranges([firing.listed]):
        yield from ((due, end) for due in firing.due(listed))
        batch.flush(end)
    firing.close()


@settings(max_examples=40 * TIMES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_batches)
def test_timers_fire_once_and_in_the_order_of_time(batches: Any) -> None:  # noqa: ANN401
    with tempfile.TemporaryDirectory() as folder:
        lab = SessionLab(Path(folder), DECLARED)
        pending: set[tuple[str, int, str, str]] = set()
        clocks: dict[Clock, int] = {"event": 0, "processing": 0}
        fired_ms: dict[Clock, int] = {}
        for commits, event_step, processing_step, limit, calls in batches:
            model = set(pending)
            now: dict[Clock, int] = {
                "event": clocks["event"] + event_step,
                "processing": clocks["processing"] + processing_step,
            }
            batch, states = lab.begin(now, fired_ms)
            for user, name, call, at, namespace in calls:
                batch.at(user)
                getattr(states[name], call)(given_as(at), namespace)
                (model.add if call == "register" else model.discard)((name, at, user, namespace))
            due = {timer for timer in model if timer[1] <= 1000 * now[DECLARED[timer[0]][0].clock]}
            model -= due
            seen: list[tuple[str, int, str, str]] = []
            order: dict[tuple[str, bytes | None], list[int]] = {}
            for fired, end in fire(batch, list(states.values()), limit):
                timer = fired.timer
                assert fired.suffix == suffix_of(fired.key[0])
                assert (timer.at, timer.at_ms) == (EPOCH + timedelta(microseconds=timer.at_us), -(-timer.at_us // 1000))
                seen.append((timer.name, timer.at_us, fired.key[0], timer.namespace))
                order.setdefault((DECLARED[timer.name][0].clock, end), []).append(timer.at_us)
            assert sorted(seen) == sorted(due)
            if limit > 1:
                assert all(instants == sorted(instants) for instants in order.values())
            if limit > 1 or not calls:
                for name, (declared, _) in DECLARED.items():
                    left = [at for timers, at, _, _ in model if timers == name]
                    first = min(left, default=None)
                    first_ms = None if first is None else -(-first // 1000)
                    assert states[name].rows.earliest_ms() == first_ms, declared.clock
            if commits:
                batch.stage()
                lab.commit(batch)
                pending, clocks, fired_ms = model, now, now
            else:
                batch.abort()
        lab.close()


def test_what_is_registered_while_timers_fire_fires_in_its_turn(tmp_path: Path) -> None:
    lab = SessionLab(tmp_path, DECLARED)

    def register(batch: Batch, states: Any) -> None:  # noqa: ANN401
        for at in (10, 20, 30):
            batch.at("user 1")
            states["near"].register(at)

    lab.run(register)
    batch, states = lab.begin(25)
    seen = []
    for due, _ in fire(batch, list(states.values())):
        seen.append((due.timer.name, due.timer.at_ms))
        if due.timer.at_ms == 10:
            batch.at("user 1")
            states["far"].register(15)
            states["far"].register(5)
            states["wall"].register(1)
            states["near"].delete(20)
        if due.timer.name == "wall":
            states["near"].register(24)
            states["near"].register(26)
    assert seen == [("near", 10), ("far", 5), ("far", 15), ("wall", 1), ("near", 24)]
    assert [states[name].rows.earliest_ms() for name in ("near", "far", "wall")] == [26, None, None]
    lab.close()


def test_rows_are_counted_exactly_and_given_back(tmp_path: Path) -> None:
    lab = SessionLab(tmp_path, {"near": DECLARED["near"]})

    def register(batch: Batch, states: Any) -> None:  # noqa: ANN401
        for user in USERS:
            batch.at(user)
            states["near"].register(100)
            states["near"].register(100)
            states["near"].delete(7)

    for _ in range(2):
        (state,) = lab.run(register)["states"]
        assert state["rows"] == len(USERS)
    batch, states = lab.begin(100)
    assert len(list(fire(batch, list(states.values())))) == len(USERS)
    batch.stage()
    (state,) = lab.commit(batch)["states"]
    assert state["rows"] == 0
    lab.close()


def test_timers_of_many_keys_are_registered_from_columns(tmp_path: Path) -> None:
    lab = SessionLab(tmp_path, {"near": DECLARED["near"]})
    batch, states = lab.begin(0)
    suffixes = sorted(map(suffix_of, USERS))
    keys = Keys(pa.table({"user": USERS}), Suffixes(suffixes))
    at = pa.array([1_000, None, 2_001, 3_000], pa.timestamp("us"))
    states["near"].register_rows(keys, np.array([0, 1, 1, 2]), at, "w")
    states["near"].delete_rows(keys, np.array([2]), pa.array([3_000], pa.timestamp("us", "UTC")), "w")
    batch.stage()
    lab.commit(batch)
    batch, states = lab.begin(10)
    assert [(due.suffix, due.timer) for due, _ in fire(batch, list(states.values()))] == [
        (suffixes[0], Timer("near", "w", 1)),
        (suffixes[1], Timer("near", "w", 3, 999)),
    ]
    with pytest.raises(InvalidInputError, match=r"'near' need an Arrow array of 2 timestamps, got int64 of 1 rows"):
        states["near"].register_rows(keys, np.array([0, 1]), pa.array([1]))
    lab.close()


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (5, 5),
        (-5, -5),
        (np.int64(7), 7),
        (np.int32(-7), -7),
        (pd.Timestamp(2000, unit="us"), 2),
        (np.datetime64("1970-01-01T00:00:00.002000"), 2),
        (np.datetime64(2001, "us"), 3),
        (np.datetime64(2_000_000, "ns"), 2),
        (np.datetime64(-7, "s"), -7000),
        (datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=timezone.utc), 1),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
        (datetime(1970, 1, 1, 0, 0, 2), 2000),  # noqa: DTZ001 - a naive one is UTC
        (datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=timezone.utc), 253402300800000),
    ],
)
def test_an_instant_is_a_datetime_or_milliseconds(at: Any, expected: int, tmp_path: Path) -> None:  # noqa: ANN401
    lab = SessionLab(tmp_path, {"near": DECLARED["near"]})
    batch, states = lab.begin(1 << 50)
    batch.at("user 1")
    states["near"].register(at)
    ((due, _),) = fire(batch, list(states.values()))
    assert due.timer.at_ms == expected
    lab.close()


@pytest.mark.parametrize("at", ["soon", 1.5, None, True, 1 << 62])
def test_what_is_no_instant_is_refused_by_value(at: Any, tmp_path: Path) -> None:  # noqa: ANN401
    lab = SessionLab(tmp_path, {"near": DECLARED["near"]})
    batch, states = lab.begin(0)
    batch.at("user 1")
    with pytest.raises(InvalidInputError, match="A timer is set to"):
        states["near"].register(at)
    lab.close()


def test_declarations_that_cannot_work_are_refused_by_name() -> None:
    with pytest.raises(InvalidInputError, match="Timers 'idle': the clock is 'wall'"):
        Timers("idle", clock="wall")  # type: ignore[arg-type]
    with pytest.raises(LifecycleError, match="Timers 'idle' is used outside of a processor"):
        Timers("idle", clock="event").register(5)

    class Deaf(KeyedProcessor):
        idle = Timers("idle", clock="event")

        def process(self, *_: Any) -> None: ...  # noqa: ANN401

    class DeafColumns(VectorProcessor):
        idle = Timers("idle", clock="event")

        def process_batch(self, *_: Any) -> None: ...  # noqa: ANN401

    with pytest.raises(InvalidInputError, match=r"Deaf declares the timers 'idle' but has no on_timer\(\)"):
        find_states(Deaf())
    with pytest.raises(
        InvalidInputError, match=r"DeafColumns declares the timers 'idle' but has no process_timers\(\)"
    ):
        find_states(DeafColumns())


def _register_as_before(timers: BoundTimers, at: datetime) -> None:
    """Store a timer as releases did that rounded instants up."""
    timers.rows._there = ROUNDED
    timers.register(round_up_ms(to_microseconds(at)))
    timers.rows._there = EXACT


@pytest.mark.parametrize("now_ms", [0, 10], ids=["waits", "due"])
@pytest.mark.parametrize("call", ["delete", "register", "other"])
def test_a_timer_that_was_stored_rounded_gives_way_to_its_instant(call: str, now_ms: int, tmp_path: Path) -> None:
    lab = SessionLab(tmp_path, {"near": DECLARED["near"]})
    exact, before = (EPOCH + timedelta(microseconds=micros) for micros in (2500, 2001))

    def register(batch: Batch, states: Any) -> None:  # noqa: ANN401
        batch.at("user 1")
        _register_as_before(states["near"], exact)
        batch.at("user 4")
        _register_as_before(states["near"], before)
        states["near"].register(7)

    lab.run(register)
    batch, states = lab.begin(now_ms)
    batch.at("user 1")
    if call != "other":
        getattr(states["near"], call)(exact)
    else:
        states["near"].delete(EPOCH + timedelta(microseconds=3001))
        states["near"].register(EPOCH + timedelta(microseconds=1999))
    seen = [(due.key[0], due.timer.at_us) for due, _ in fire(batch, list(states.values()))]
    batch.stage()
    (state,) = lab.commit(batch)["states"]
    expected = [("user 4", 3000), ("user 4", 7000)]
    expected += {"delete": [], "register": [("user 1", 2500)], "other": [("user 1", 1999), ("user 1", 3000)]}[call]
    if now_ms == 0:
        assert (seen, state["rows"]) == ([], len(expected))
        batch, states = lab.begin(10)
        seen = [(due.key[0], due.timer.at_us) for due, _ in fire(batch, list(states.values()))]
        batch.stage()
        (state,) = lab.commit(batch)["states"]
    assert sorted(seen) == sorted(expected)
    assert state["rows"] == 0
    assert lab.stored_rows("near") == 0
    lab.close()


def test_a_rounded_timer_that_is_set_again_at_its_millisecond_is_one_timer(tmp_path: Path) -> None:
    lab = SessionLab(tmp_path, {"near": DECLARED["near"]})

    def register(batch: Batch, states: Any) -> None:  # noqa: ANN401
        batch.at("user 1")
        _register_as_before(states["near"], EPOCH + timedelta(microseconds=2001))

    lab.run(register)
    batch, states = lab.begin(10)
    batch.at("user 1")
    states["near"].register(3)
    states["near"].delete(EPOCH + timedelta(microseconds=2001))
    assert [due.timer.at_us for due, _ in fire(batch, list(states.values()))] == [3000]
    batch.stage()
    (state,) = lab.commit(batch)["states"]
    assert (state["rows"], lab.stored_rows("near")) == (0, 0)
    lab.close()


@pytest.mark.parametrize(
    ("at", "match"),
    [
        (pd.NaT, "A timer is set to NaT"),
        (pd.Timestamp(1001, unit="ns"), "timers have microseconds"),
        (np.float64(5), "A timer is set to"),
        (np.datetime64("NaT"), "A timer is set to"),
        (np.datetime64("NaT", "us"), "A timer is set to"),
        (np.datetime64("1970-01-01"), "A timer is set to .* of type datetime64"),
        (np.datetime64(1 << 62, "s"), "A timer is set to"),
        (np.datetime64(1001, "ns"), "A timer is set to"),
        (np.array([5]), "A timer is set to"),
        (np.bool_(True), "A timer is set to"),
    ],
)
def test_instants_of_other_libraries_are_refused_where_they_are_none(at: Any, match: str, tmp_path: Path) -> None:  # noqa: ANN401
    lab = SessionLab(tmp_path, {"near": DECLARED["near"]})
    batch, states = lab.begin(0)
    batch.at("user 1")
    with pytest.raises(InvalidInputError, match=match):
        states["near"].register(at)
    keys = Keys(pa.table({"user": ["user 1"]}), Suffixes([suffix_of("user 1")]))
    with pytest.raises(InvalidInputError, match=r"'near' count microseconds, but got instants of type timestamp\[ns\]"):
        states["near"].register_rows(keys, np.array([0]), pa.array([1001], pa.timestamp("ns")))
    lab.close()
