"""States of groups that are called one after the other, or twice: what iterators show, and what is freed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.labs.session_lab import HOUR
from tests.operators.session.test_group_session import Groups


@pytest.fixture
def groups(tmp_path: Path) -> Any:  # noqa: ANN401 - a generator
    made = Groups(tmp_path)
    yield made
    made.close()


@pytest.mark.in_turn
@pytest.mark.parametrize("most_held_bytes", [None, 0, 2000])
@pytest.mark.parametrize("log_bytes", [1, 1 << 20])
def test_iterators_of_groups_that_had_their_turn_show_what_was_there(
    log_bytes: int, most_held_bytes: int | None, groups: Groups
) -> None:
    groups.begin()
    session = groups.session(HOUR, log_bytes, most_held_bytes)
    kept = []
    for number, user in enumerate(["user 1", "user 4", "user 6"]):
        states = session.at(user)
        for n in range(20):
            states["list"].add(100 * number + n)
            states["map"].put(f"{n:02}", 100 * number + n)
        half = states["list"].get()
        first = next(half)
        kept.append((number, first, half, states["list"].get(), states["map"].values(), states["map"].keys()))
        states["list"].clear()
        states["map"].put("00", -1)
        states["map"].remove("01")
        states["list"].add(7)
        session.stage()
    for number, first, half, elements, values, keys in kept:
        expected = [100 * number + n for n in range(20)]
        assert [first, *half] == expected
        assert list(elements) == list(values) == expected
        assert list(keys) == [f"{n:02}" for n in range(20)]
    again = groups.session(HOUR, log_bytes, most_held_bytes)
    states = again.at("user 4", is_again=True)
    assert list(states["list"].get()) == [7]
    assert list(states["map"].items())[:2] == [("00", -1), ("02", 102)]
    again.stage()
    groups.commit()


@pytest.mark.parametrize("count", [3, 5000])
def test_a_list_that_a_second_call_of_its_group_clears_is_freed_exactly(count: int, groups: Groups) -> None:
    groups.begin()
    first = groups.session(HOUR)
    first.at("user 1")["list"].add_all(range(count))
    first.stage()
    second = groups.session(HOUR)
    elements = second.at("user 1", is_again=True)["list"]
    elements.clear()
    elements.add_all([1, 2])
    second.stage()
    rows = {state["name"]: state["rows"] for state in groups.commit()["states"]}
    assert rows["list"] == 3
    groups.begin()
    groups.session(3 * HOUR)
    rows = {state["name"]: state["rows"] for state in groups.commit()["states"]}
    assert rows["list"] == 0
