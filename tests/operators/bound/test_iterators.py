"""Iterators over lists and maps show what was there when they were made, whatever is written before they are read."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_ckpt.operators.declarations.states import ListState, MapState
from pyspark_ckpt.operators.declarations.ttl import Ttl
from pyspark_ckpt.state_store.errors import LifecycleError
from tests.labs.length import TIMES
from tests.labs.session_lab import LONG, SessionLab

USERS = ["user 1", "user 4", "user 6"]  # the first two share a hash
HOUR = 3_600_000
TTLS: Mapping[str, Ttl | None] = {
    "forever": None,
    "written": Ttl("1 hour"),
    "read": Ttl("1 hour", refresh="on_read_and_write"),
    "event": Ttl("1 hour", clock="event"),
    "event read": Ttl("1 hour", clock="event", refresh="on_read_and_write"),
}
ENTRIES = st.integers(0, 7)

_turn = st.one_of(
    st.tuples(st.just("add"), ENTRIES),
    st.tuples(st.just("add"), ENTRIES),
    st.tuples(st.just("update"), ENTRIES),
    st.tuples(st.just("remove"), ENTRIES),
    st.tuples(st.just("clear"), ENTRIES),
    st.tuples(st.just("open"), ENTRIES),
    st.tuples(st.just("open"), ENTRIES),
    st.tuples(st.just("read"), ENTRIES),
    st.tuples(st.just("read"), ENTRIES),
    st.tuples(st.just("go"), ENTRIES),
    st.tuples(st.just("flush"), ENTRIES),
)
_batches = st.lists(
    st.tuples(st.sampled_from([0, HOUR // 2, HOUR]), st.lists(_turn, min_size=4, max_size=30)), min_size=1, max_size=4
)


class Model:
    """One state of all keys: values under their entries, each with when it was written or read last."""

    def __init__(self, name: str) -> None:
        self.is_map = name.startswith("map")
        self.ttl = TTLS[name.partition(" ")[2]]
        self.kept: dict[str, dict[int, tuple[int, int]]] = {user: {} for user in USERS}
        self.next: dict[str, int] = dict.fromkeys(USERS, 0)

    def living(self, user: str, now_ms: int) -> dict[int, tuple[int, int]]:
        found = sorted(self.kept[user].items())
        return {
            key: (value, at) for key, (value, at) in found if self.ttl is None or at > now_ms - self.ttl.duration_ms
        }

    def set(self, user: str, entry: int, value: int, now_ms: int) -> None:
        if not self.is_map:
            entry = self.next[user]
            self.next[user] += 1
        self.kept[user][entry] = (value, now_ms)

    def read(self, user: str, entry: int, seen: tuple[int, int], now_ms: int) -> None:
        if self.ttl is not None and self.ttl.refresh == "on_read_and_write" and self.kept[user].get(entry) == seen:
            self.kept[user][entry] = (seen[0], now_ms)


class Life:
    """States of both kinds with every time to live, their models, and the iterators that are open in a batch."""

    def __init__(self, folder: Path, spilled_beyond: int | None) -> None:
        declared: dict[str, Any] = {}
        for name, ttl in TTLS.items():
            declared[f"map {name}"] = (
                MapState(f"map {name}", "bigint", "bigint", ttl=ttl),
                {"key": LONG, "value": LONG},
            )
            declared[f"list {name}"] = (ListState(f"list {name}", "bigint", ttl=ttl), {"element": LONG})
        self.lab = SessionLab(folder, declared)
        self.lab.most_held_bytes = spilled_beyond
        self.models = {name: Model(name) for name in declared}
        self.now_ms = 10 * HOUR
        self.written = 0

    def begin(self) -> None:
        self.batch, self.states = self.lab.begin(self.now_ms)
        self.open: list[tuple[Model, str, Iterator[Any], Iterator[Any]]] = []
        self.user = USERS[0]
        self.is_flushed = False
        self.batch.at(self.user)

    def end(self) -> None:
        self.open = []
        self.batch.stage()
        self.lab.commit(self.batch)

    def each(self, call: Callable[[Any, Model], None]) -> None:
        for name, state in self.states.items():
            call(state, self.models[name])

    def go(self, number: int) -> None:
        self.user = USERS[number % len(USERS)]
        self.batch.at(self.user)

    def add(self, number: int) -> None:
        self.written += 1

        def call(state: Any, model: Model) -> None:  # noqa: ANN401
            if model.is_map:
                state.put(number, self.written)
            else:
                state.add(self.written)
            model.set(self.user, number, self.written, self.now_ms)

        self.each(call)

    def update(self, number: int) -> None:
        def call(state: Any, model: Model) -> None:  # noqa: ANN401
            model.kept[self.user].clear()
            model.next[self.user] = 0
            if model.is_map:
                state.clear()
                state.put_all({n: -n for n in range(number)})
            else:
                state.update([-n for n in range(number)])
            for n in range(number):
                model.set(self.user, n, -n, self.now_ms)

        self.each(call)

    def remove(self, number: int) -> None:
        def call(state: Any, model: Model) -> None:  # noqa: ANN401
            if model.is_map:
                state.remove(number)
                model.kept[self.user].pop(number, None)

        self.each(call)

    def clear(self, _number: int) -> None:
        def call(state: Any, model: Model) -> None:  # noqa: ANN401
            state.clear()
            model.kept[self.user].clear()
            model.next[self.user] = 0

        self.each(call)

    def open_one(self, number: int) -> None:
        def call(state: Any, model: Model) -> None:  # noqa: ANN401
            living = model.living(self.user, self.now_ms)
            if not model.is_map:
                self._open(model, state.get(), living, lambda _entry, value: value)
            elif number % 4 == 0:
                self._open(model, state.keys(), living, lambda entry, _value: entry)
            elif number % 4 == 1:
                self._open(model, state.values(), living, lambda _entry, value: value)
            else:
                begin, end = number // 2, None if number % 4 == 2 else 6
                inside = {key: each for key, each in living.items() if key >= begin and (end is None or key < end)}
                self._open(model, state.items(begin, end), inside, lambda entry, value: (entry, value))

        self.each(call)

    def _open(
        self, model: Model, found: Iterator[Any], living: Mapping[int, Any], shown: Callable[[int, int], Any]
    ) -> None:
        user, is_flushed = self.user, self.is_flushed

        def expected() -> Iterator[Any]:
            for entry, seen in living.items():
                if self.is_flushed == is_flushed:  # or the key's turn is over
                    model.read(user, entry, seen, self.now_ms)
                yield shown(entry, seen[0])

        self.open.append((model, user, found, expected()))

    def read(self, number: int) -> None:
        for _, _, found, expected in self.open[:: number % 3 + 1]:
            for _ in range(number + 1):
                assert next(found, "no more") == next(expected, "no more")

    def flush(self, _number: int) -> None:
        """The turn of all keys is over: they are not written again, and what was opened still shows what it did."""
        self.batch.flush()
        self.is_flushed = True


@pytest.mark.in_turn
@settings(max_examples=15 * TIMES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_batches, st.sampled_from([None, 0, 1000, 4000]))
def test_an_iterator_shows_what_was_there_when_it_was_made(batches: Any, spilled_beyond: int | None) -> None:  # noqa: ANN401
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder), spilled_beyond)
        for passed_ms, turns in batches:
            life.now_ms += passed_ms
            life.begin()
            for name, number in turns:
                if not life.is_flushed or name == "read":
                    getattr(life, {"open": "open_one"}.get(name, name))(number)
            life.read(7)
            life.end()
            gc.collect()
        life.begin()
        for user in USERS:
            life.batch.at(user)
            for name, state in life.states.items():
                living = [(entry, value) for entry, (value, _) in life.models[name].living(user, life.now_ms).items()]
                found = list(state.items()) if name.startswith("map") else list(state.get())
                assert found == (living if name.startswith("map") else [value for _, value in living]), (name, user)
        life.batch.abort()
        life.lab.close()


@pytest.mark.in_turn
@pytest.mark.parametrize("ttl", list(TTLS))
@pytest.mark.parametrize("spilled_beyond", [None, 0])
def test_what_was_taken_before_a_clear_is_shown_and_stays_cleared(
    ttl: str, spilled_beyond: int | None, tmp_path: Path
) -> None:
    life = Life(tmp_path, spilled_beyond)
    for has_base in (False, True):
        life.begin()
        if not has_base:
            for number in range(4):
                life.add(number)
        entries, elements = life.states[f"map {ttl}"], life.states[f"list {ttl}"]
        taken = entries.items(), entries.keys(), entries.values(), elements.get(), entries.items(1, 3)
        entries.clear()
        elements.clear()
        shown = [[(n, n + 1) for n in range(4)], [0, 1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4], [(1, 2), (2, 3)]]
        assert [list(each) for each in taken] == shown
        assert (list(entries.items()), list(elements.get())) == ([], [])
        if has_base:
            life.end()
        else:
            entries.put_all({n: n + 1 for n in range(4)})
            elements.add_all([1, 2, 3, 4])
            life.end()
    life.begin()
    assert (list(life.states[f"map {ttl}"].items()), list(life.states[f"list {ttl}"].get())) == ([], [])
    life.batch.abort()
    assert life.lab.stored_rows(f"map {ttl}") == life.lab.stored_rows(f"list {ttl}") == 0
    life.lab.close()


def test_an_iterator_that_is_begun_after_its_batch_is_refused(tmp_path: Path) -> None:
    life = Life(tmp_path, None)
    life.begin()
    life.add(1)
    life.end()
    life.begin()
    left = life.states["map forever"].items()
    life.end()
    with pytest.raises(LifecycleError, match="is used after its batch has ended"):
        next(left)
    life.lab.close()
