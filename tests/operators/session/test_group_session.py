"""Sessions that groups use one after the other: what each has staged is committed, however the log was cut."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.operators.bound.base import Binding, Kept
from pyspark_ckpt.operators.bound.binding import bind
from pyspark_ckpt.operators.declarations.states import ListState, MapState, ValueState
from pyspark_ckpt.operators.declarations.ttl import Ttl
from pyspark_ckpt.operators.rows.expiry import index_name
from pyspark_ckpt.operators.session.group import LOG_BYTES, GroupSession
from pyspark_ckpt.operators.task.staging import row_changes, spill, sweep_share, take_written
from pyspark_ckpt.state_store.format.meta import Descriptor
from pyspark_ckpt.state_store.transactions.ticket import read_ticket
from tests.labs.lab import CallError, Lab
from tests.labs.session_lab import HOUR, KEYS, LONG, SPILLED_BEYOND, TEXT, suffix_of

STATES: dict[str, Any] = {
    "value": (ValueState("value", "bigint"), {"value": LONG}),
    "list": (ListState("list", "bigint", ttl="1 hour"), {"element": LONG}),
    "map": (MapState("map", "string", "bigint"), {"key": TEXT, "value": LONG}),
    "events": (ListState("events", "bigint", ttl=Ttl("1 hour", clock="event")), {"element": LONG}),
}


class Groups:
    """Tasks on one store, each of one or more sessions."""

    def __init__(self, folder: Path) -> None:
        self._lab = Lab(folder)
        self._handle = self._lab.open()
        self._marker: tuple[int, str | None] = (0, None)
        self._attempts = count(1)
        self._sessions: list[GroupSession] = []

    def begin(self) -> None:
        """Begin a task."""
        self._attempt = next(self._attempts)
        version, commit_id = self._marker
        begun = self._lab.server.call(
            "begin", handle=self._handle, version=version, id=commit_id, attempt=self._attempt
        )
        self.txn: int = begun["txn"]

    def session(self, now_ms: int = 0, log_bytes: int = LOG_BYTES, most_held_bytes: int | None = None) -> Session:
        """One more session of the task, in which no more than so many bytes are held of what a group has written."""
        (path,) = (self._lab.local_dir / "tickets").glob(f"{self._attempt}-*.json")
        self.staging = Path(read_ticket(path).staging)
        declared = []
        for name, (state, _) in STATES.items():
            declared.append((name, Descriptor()))
            if state.ttl is not None:
                declared.append((index_name(name), Descriptor(ordered=True, internal=True)))
        made = GroupSession(read_ticket(path), declared, KEYS, {"processing": now_ms, "event": now_ms}, log_bytes)
        self._sessions.append(made)
        return Session(made, most_held_bytes)

    def commit(self) -> dict[str, Any]:
        """End the task; the answer of its commit."""
        answer: dict[str, Any] = self._lab.server.call("commit", txn=self.txn, files=[], rows={}, num_partitions=1)
        self._marker = (answer["version"], answer["id"])
        return answer

    def close(self) -> None:
        """End the server."""
        for session in self._sessions:
            session.close()
        self._lab.server.stores.shut_down()


MEMORY_BYTES = 1 << 20


class Session:
    """A session, and its states."""

    def __init__(self, session: GroupSession, most_held_bytes: int | None) -> None:
        self.session = session
        self.states = {
            name: bind(Binding(state, kinds, session.numbers[name], session.numbers.get(index_name(name)), session))
            for name, (state, kinds) in STATES.items()
        }
        self._bound: list[Kept] = list(self.states.values())
        if session.is_first:
            sweep_share(session, self._bound, MEMORY_BYTES)
            session.stage_swept(take_written(self._bound), row_changes(self._bound))
        if most_held_bytes is not None:
            session.spill_beyond(most_held_bytes, partial(spill, session, self._bound))

    def at(self, user: str, *, is_again: bool = False) -> dict[str, Any]:
        """The states of a group."""
        self.session.at(suffix_of(user), is_again=is_again)
        return self.states

    def stage(self) -> None:
        """End the group."""
        self.session.stage_group(take_written(self._bound), partial(row_changes, self._bound))


@pytest.fixture
def groups(tmp_path: Path) -> Any:  # noqa: ANN401 - a generator
    made = Groups(tmp_path)
    yield made
    made.close()


def _shown(states: dict[str, Any]) -> tuple[Any, ...]:
    return states["value"].value(), list(states["list"].get()), dict(states["map"].items())


@pytest.mark.in_turn
@pytest.mark.parametrize("most_held_bytes", SPILLED_BEYOND)
@pytest.mark.parametrize("log_bytes", [1, pytest.param(200, marks=pytest.mark.matrix), LOG_BYTES])
def test_what_every_group_has_staged_is_committed_wherever_the_log_is_cut(
    log_bytes: int, most_held_bytes: int | None, groups: Groups
) -> None:
    users = [f"user {n}" for n in range(30)]
    for batch in range(3):
        groups.begin()
        for part in (users[:20], users[20:]):  # two sessions of a task, as for groups that have timed out
            session = groups.session(log_bytes=log_bytes, most_held_bytes=most_held_bytes)
            for user in part:
                states = session.at(user)
                assert _shown(states)[1:] == ([*range(batch)], {str(n): n for n in range(batch)})
                states["value"].update(batch)
                states["list"].add(batch)
                states["map"].put(str(batch), batch)
                session.stage()
        answer = groups.commit()
        rows = {state["name"]: state["rows"] for state in answer["states"]}
        assert (rows["value"], rows["map"]) == (30, 30 * (batch + 1))
        assert rows["list"] == 30 * (batch + 2), "the elements and where the list ends"


@pytest.mark.in_turn
@pytest.mark.parametrize("most_held_bytes", SPILLED_BEYOND)
@pytest.mark.parametrize("log_bytes", [1, pytest.param(200, marks=pytest.mark.matrix), LOG_BYTES])
@pytest.mark.parametrize("sessions", [1, 2])
def test_a_group_finds_what_it_has_staged_when_it_is_called_again(
    sessions: int, log_bytes: int, most_held_bytes: int | None, groups: Groups
) -> None:
    users = ("a", "b", "c", "nobody")
    for batch in range(4):
        groups.begin()
        session = groups.session(log_bytes=log_bytes, most_held_bytes=most_held_bytes)
        for user in users[:3]:
            states = session.at(user)
            states["value"].update(10 * batch)
            if user == "b":
                states["list"].clear()
                states["map"].clear()
            states["list"].add_all([batch] * 3)
            states["map"].put(str(batch), batch)
            session.stage()
        again = session if sessions == 1 else groups.session(log_bytes=log_bytes, most_held_bytes=most_held_bytes)
        for user in users:
            states = again.at(user, is_again=True)
            value, elements, entries = _shown(states)
            if user == "nobody":
                assert (value, elements, entries) == (None, [], {})
                continue
            assert value == 10 * batch
            earlier = {"a": [*range(batch)], "b": [], "c": []}[user]
            assert elements == [each for n in earlier for each in (n, n, n, 100 + n)] + [batch] * 3
            assert entries == {**{str(n): n for n in earlier}, **{f"{n}!": n for n in earlier}, str(batch): batch}
            states["value"].update(value + 1)
            if user == "c":
                for each in ("value", "list", "map"):
                    states[each].clear()
            else:
                states["list"].add(100 + batch)
                states["map"].put(f"{batch}!", batch)
            again.stage()
        rows = {state["name"]: state["rows"] for state in groups.commit()["states"]}
        assert rows["value"] == 2
        assert rows["list"] == 4 * (batch + 1) + 1 + 4 + 1, "elements and heads of a and b"
        assert rows["map"] == 2 * (batch + 1) + 2
    groups.begin()
    session = groups.session()
    assert _shown(session.at("b")) == (31, [3, 3, 3, 103], {"3": 3, "3!": 3})
    assert _shown(session.at("c")) == (None, [], {})


@pytest.mark.parametrize("most_held_bytes", SPILLED_BEYOND)
@pytest.mark.parametrize("log_bytes", [1, LOG_BYTES])
def test_rows_are_counted_when_the_last_group_has_cleared_some(
    log_bytes: int, most_held_bytes: int | None, groups: Groups
) -> None:
    for _ in range(3):
        groups.begin()
        session = groups.session(log_bytes=log_bytes, most_held_bytes=most_held_bytes)
        states = session.at("a")
        states["list"].update([1, 2, 3])
        states["map"].clear()
        states["map"].put("only", 1)
        session.stage()
        rows = {state["name"]: state["rows"] for state in groups.commit()["states"]}
        assert (rows["list"], rows["map"]) == (4, 1)


def test_a_large_list_is_cleared_when_the_log_is_full(groups: Groups) -> None:
    groups.begin()
    session = groups.session(log_bytes=500)
    session.at("a")["list"].add_all(range(1000))
    session.stage()
    session.at("b")["list"].add_all(range(3))
    session.stage()
    groups.commit()
    groups.begin()
    session = groups.session(log_bytes=500)
    session.at("a")["value"].update(1)
    session.stage()
    session.at("a")["list"].clear()
    session.stage()
    session.at("b")["list"].add(3)
    session.stage()
    answer = groups.commit()
    assert {state["name"]: state["rows"] for state in answer["states"] if state["name"] in ("value", "list")} == {
        "value": 1,
        "list": 5,
    }
    groups.begin()
    session = groups.session()
    assert _shown(session.at("a")) == (1, [], {})
    assert _shown(session.at("b")) == (None, [0, 1, 2, 3], {})


def test_rows_that_the_first_session_has_freed_are_gone_for_the_second_one_too(groups: Groups) -> None:
    groups.begin()
    session = groups.session()
    for user in ("a", "b"):
        session.at(user)["list"].add_all([1, 2])
        session.stage()
    groups.commit()
    groups.begin()
    for user in ("a", "b"):
        session = groups.session(now_ms=3 * HOUR)
        assert _shown(session.at(user)) == (None, [], {})
        session.states["list"].add(3)
        session.stage()
    answer = groups.commit()
    assert answer["metrics"]["expired_rows"] == 4
    assert {state["name"]: state["rows"] for state in answer["states"]}["list"] == 4
    groups.begin()
    session = groups.session(now_ms=3 * HOUR)
    for user in ("a", "b"):
        assert _shown(session.at(user)) == (None, [3], {})


def test_the_first_session_frees_a_share_of_a_state_and_tells_what_is_left(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_ckpt.operators.task.staging.MIN_SWEPT", 1)
    users = [f"user {n}" for n in range(30)]
    freed, left = [], []
    for batch in range(4):
        groups.begin()
        session = groups.session(now_ms=3 * HOUR * batch)
        for user in users if batch == 0 else ():
            session.at(user)["list"].add_all([1, 2])
            session.stage()
        metrics = groups.commit()["metrics"]
        freed.append(metrics["expired_rows"])
        left.append(metrics["expired_rows_left"])
    assert freed == [0, 46, 10, 4], "half of 30 heads and 60 elements, in whole spans, and then of what is left"
    assert left == [0, 14, 4, 0]


def test_rows_whose_lives_the_first_session_has_begun_are_there_for_the_second_one_too(groups: Groups) -> None:
    groups.begin()
    session = groups.session()
    for user in ("a", "b"):
        session.at(user)["events"].add_all([1, 2])
        session.stage()
    groups.commit()
    for now_ms, expected in ((500_000 * HOUR, [1, 2]), (500_001 * HOUR - 1, [1, 2]), (500_001 * HOUR, [])):
        groups.begin()
        for user in ("a", "b"):
            session = groups.session(now_ms)
            assert list(session.at(user)["events"].get()) == expected
            session.stage()
        groups.commit()


def test_a_task_whose_groups_wrote_nothing_commits(groups: Groups) -> None:
    groups.begin()
    session = groups.session()
    session.at("a")["value"].value()
    session.stage()
    assert groups.commit()["version"] == 1


@pytest.mark.parametrize("harm", [lambda content: content[:-1], lambda content: content[:5] + b"\xff" + content[6:]])
def test_a_damaged_log_fails_the_commit_and_is_named(harm: Any, groups: Groups) -> None:  # noqa: ANN401
    groups.begin()
    session = groups.session()
    session.at("a")["value"].update(1)
    session.stage()
    (log,) = groups.staging.glob("*.log")
    log.write_bytes(harm(log.read_bytes()))
    with pytest.raises(CallError, match=f"{log.name} is damaged"):
        groups.commit()
