"""Lists whose elements have a time to live: nothing that lives is freed, all else is, whatever a program changes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from integration.sample import ALL
from pyspark_ckpt.operators import ListState, MapState, Ttl
from pyspark_ckpt.operators.declarations.ttl import Refresh
from pyspark_ckpt.operators.rows.expiry import index_name
from pyspark_ckpt.operators.rows.list_layout import SPAN_ELEMENTS
from pyspark_ckpt.operators.session.worker import WorkerSession
from tests.labs.length import TIMES
from tests.labs.scratch import IN_MEMORY
from tests.labs.session_lab import HOUR, LONG, SPILLED_BEYOND, Batch, SessionLab, keys_of, suffix_of

MINUTE = HOUR // 60

_actions = st.tuples(
    st.sampled_from("ab"),
    st.sampled_from(["add", "add to all", "clear", "update", "read", "clear all", "update all", "exists"]),
)


@dataclass
class Element:
    """What a list should hold. One that was over in some batch may be there or not."""

    value: int
    since_ms: int
    was_over: bool = False


def _list(hours: int, refresh: Refresh) -> Any:  # noqa: ANN401
    return (ListState("list", "bigint", ttl=Ttl(f"{hours} hours", refresh=refresh)), {"element": LONG})


def _write(state: Any, model: list[Element], action: str, values: list[int], now: int) -> None:  # noqa: ANN401
    if action == "clear":
        state.clear()
    else:
        (state.update if action == "update" else state.add_all)(values)
    if action != "add":
        model.clear()
    if action != "clear":
        model.extend(Element(value, now) for value in values)


def _write_all(state: Any, model: dict[str, list[Element]], action: str, values: list[int], now: int) -> None:  # noqa: ANN401
    keys = keys_of(sorted(model))
    users = keys.column("user").to_pylist()
    if action == "add to all":
        state.add_rows(keys, np.array([1, 0, 1]), pa.array(values))
        for at, value in zip((1, 0, 1), values, strict=True):
            model[users[at]].append(Element(value, now))
        return
    for elements in model.values():
        elements.clear()
    if action == "clear all":
        state.clear_keys(keys)
    else:
        state.put_lists(keys, pa.array([values, None], pa.list_(LONG)))
        model[users[0]] += [Element(value, now) for value in values]


def _check_existence(state: Any, model: dict[str, list[Element]], refresh: Refresh) -> None:  # noqa: ANN401
    if refresh == "on_read_and_write":  # it is a read, of the first element
        return
    keys = keys_of(sorted(model))
    for user, found in zip(keys.column("user").to_pylist(), state.exists_keys(keys).to_pylist(), strict=True):
        if all(each.was_over for each in model[user]):
            assert not (found and not model[user])
        else:
            assert found


@settings(max_examples=(30 if ALL else 10) * TIMES, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(-30, 200),  # minutes until the next batch; clocks go back
            st.sampled_from([1, 1, 2, 8]),
            st.sampled_from(["on_create_and_write", "on_create_and_write", "on_read_and_write"]),
            st.lists(_actions, max_size=4),
        ),
        max_size=8,
    ),
    st.sampled_from(SPILLED_BEYOND),
)
def test_elements_live_as_a_model_says(batches: list[Any], most_held_bytes: int | None) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.exists() else None) as folder:
        lab = SessionLab(Path(folder), {"list": _list(1, "on_create_and_write")})
        lab.most_held_bytes = most_held_bytes
        model: dict[str, list[Element]] = {"a": [], "b": []}
        now, values = 100 * HOUR, count()
        for minutes, hours, refresh, actions in batches:
            now += minutes * MINUTE
            lab.states = {"list": _list(hours, refresh)}
            for element in (*model["a"], *model["b"]):
                element.was_over |= element.since_ms <= now - hours * HOUR
            batch, bound = lab.begin(now)
            for user, action in actions:
                batch.at(user)
                if action == "read":
                    found = list(bound["list"].get())
                    there = [each for each in model[user] if not each.was_over or each.value in found]
                    assert found == [each.value for each in there]
                    for element in there:
                        element.was_over = False
                        element.since_ms = now if refresh == "on_read_and_write" else element.since_ms
                elif action == "exists":
                    _check_existence(bound["list"], model, refresh)
                elif action.endswith(" all"):
                    _write_all(bound["list"], model, action, [next(values) for _ in range(3)], now)
                else:
                    _write(bound["list"], model[user], action, [next(values), next(values)], now)
            batch.stage()
            answer = lab.commit(batch)
            assert answer["states"][0]["rows"] == lab.stored_rows("list"), "the count is exact"
        lab.states = {"list": _list(1, "on_create_and_write")}
        for hours in (20, 40):
            answer = lab.run(lambda _batch, _bound: None, now_ms=now + hours * HOUR)
        if all(minutes >= 0 for minutes, *_ in batches) and len({refresh for _, _, refresh, _ in batches}) < 2:
            assert answer["states"][0]["rows"] == 0, "elements and heads are freed"
        assert answer["states"][0]["rows"] <= len(model), "no more than heads are left"
        assert lab.stored_rows(index_name("list")) == 0, "and nothing of the index"
        lab.close()


def test_elements_live_their_time_when_it_is_shortened(quick_path: Path) -> None:
    step = 1 << 21  # of an index for eight hours, in milliseconds
    lab = SessionLab(quick_path, {"list": _list(8, "on_create_and_write")})

    def add(batch: Batch, bound: dict[str, Any]) -> None:
        batch.at("a")
        bound["list"].add(1)

    written = 100 * step + 30 * MINUTE
    lab.run(add, now_ms=written)
    lab.states = {"list": _list(1, "on_create_and_write")}
    answer = lab.run(lambda _batch, _bound: None, now_ms=written + 59 * MINUTE)
    assert answer["metrics"]["expired_rows"] == 0
    answer = lab.run(lambda _batch, _bound: None, now_ms=written + HOUR + 6 * MINUTE)
    assert answer["metrics"]["expired_rows"] == 1
    lab.close()


def test_a_long_list_is_freed_in_portions(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_ckpt.operators.task.staging.MIN_SWEPT", 10)
    lab = SessionLab(quick_path, {"list": _list(1, "on_create_and_write")})

    def add(batch: Batch, bound: dict[str, Any]) -> None:
        batch.at("a")
        bound["list"].add_all(range(SPAN_ELEMENTS))
        bound["list"].clear()
        for _ in range(3):
            bound["list"].add_all(range(SPAN_ELEMENTS - 1))

    lab.run(add, now_ms=0)
    answers = [lab.run(lambda _batch, _bound: None, now_ms=2 * HOUR) for _ in range(4)]
    freed = [answer["metrics"]["expired_rows"] for answer in answers]
    assert freed == [SPAN_ELEMENTS, SPAN_ELEMENTS, SPAN_ELEMENTS - 3, 0]
    assert answers[-1]["states"][0]["rows"] == 0
    lab.close()


def test_spans_are_freed_without_a_look_up(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = SessionLab(quick_path, {"list": _list(1, "on_create_and_write")})

    def add(batch: Batch, bound: dict[str, Any]) -> None:
        for user in "abc":
            batch.at(user)
            bound["list"].add_all(range(100))

    lab.run(add, now_ms=0)
    looked_up: list[int] = []

    def counting(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def counted(session: Any, keys: Any) -> Any:  # noqa: ANN401
            looked_up.append(len(keys))
            return original(session, keys)

        return counted

    for name in ("get_many", "get_cells"):
        monkeypatch.setattr(WorkerSession, name, counting(getattr(WorkerSession, name)))
    answer = lab.run(lambda _batch, _bound: None, now_ms=2 * HOUR)
    assert answer["metrics"]["expired_rows"] == 300
    assert sum(looked_up) == 3, "the heads"
    assert answer["states"][0]["rows"] == lab.stored_rows(index_name("list")) == 0
    lab.close()


def test_what_is_written_for_later_keys_is_cleared_with_its_span(quick_path: Path) -> None:
    first, last = keys_of(["a", "b"]).column("user").to_pylist()
    lab = SessionLab(quick_path, {"list": _list(1, "on_create_and_write")})

    def add(batch: Batch, bound: dict[str, Any]) -> None:
        batch.at(last)
        bound["list"].add_all(range(5))
        batch.flush(suffix_of(last))
        bound["list"].clear()
        batch.at(first)
        bound["list"].add(0)

    assert lab.run(add, now_ms=0)["states"][0]["rows"] == 2, "an element and its head"
    assert lab.stored_rows(index_name("list")) == 1
    assert lab.run(lambda _batch, _bound: None, now_ms=2 * HOUR)["metrics"]["expired_rows"] == 1
    lab.close()


def test_rows_of_many_lists_and_maps_are_seen_and_staged(quick_path: Path) -> None:
    minutes = MapState("minutes", "bigint", "bigint", ttl="1 hour")
    lab = SessionLab(
        quick_path, {"list": _list(1, "on_create_and_write"), "map": (minutes, {"key": LONG, "value": LONG})}
    )
    keys = keys_of([f"user {n}" for n in range(7)])
    index = np.array([6, 0, 3, 3, 5, 0, 3])

    def add(batch: Batch, bound: dict[str, Any]) -> None:
        bound["list"].add_rows(keys, index, pa.array(range(7)))
        bound["map"].put_entries(keys, index, pa.array(range(7)), pa.array(range(7)))
        batch.at(keys.column("user")[3].as_py())
        assert list(bound["list"].get())[-3:] == [2, 3, 6], "what waits is seen"
        bound["list"].add_rows(keys, np.array([3]), pa.array([7]))

    lab.run(add, now_ms=0)
    lab.run(add, now_ms=2 * HOUR)
    _, bound = lab.begin(2 * HOUR)
    assert bound["list"].get_lists(keys).to_pylist() == [[1, 5], [], [], [2, 3, 6, 7], [], [4], [0]]
    entries: list[list[tuple[int, int]]] = [[] for _ in range(7)]
    for n, place in enumerate(index.tolist()):
        entries[place].append((n, n))
    assert bound["map"].get_range(keys).to_pylist() == entries
    lab.close()
