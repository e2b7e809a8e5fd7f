"""Expired rows do not pile up, however many rows of a state a task writes, and what is live is never freed."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_ckpt.operators import ListState, MapState, ValueState
from pyspark_ckpt.operators.rows.expiry import index_name
from pyspark_ckpt.state_store.format.keys import HASH_BYTES
from tests.labs.session_lab import (
    HOUR,
    LONG,
    TEXT,
    USERS,
    Batch,
    SessionLab,
    keys_of,
    suffix_of,
)

ENTRIES = 1200
"""Of one key and batch: more than a batch then frees in any case."""
STATES: dict[str, Any] = {
    "value": (ValueState("value", "bigint", ttl="1 hour"), {"value": LONG}),
    "list": (ListState("list", "bigint", ttl="1 hour"), {"element": LONG}),
    "map": (MapState("map", "bigint", "bigint", ttl="1 hour"), {"key": LONG, "value": LONG}),
}


def _write(kind: str, number: int, batch: Batch, bound: dict[str, Any]) -> None:
    """Write entries of one key, or one value of each of as many keys; others in every batch."""
    batch.at("a")
    if kind == "list":
        bound[kind].add_all(range(ENTRIES))
    elif kind == "map":
        for entry in range(ENTRIES):
            bound[kind].put(ENTRIES * number + entry, entry)
    else:
        bound[kind].put(keys_of([f"{number} {user}" for user in range(ENTRIES)]), pa.array(range(ENTRIES), LONG))


@pytest.mark.parametrize("kind", STATES)
def test_expired_rows_are_freed_as_fast_as_one_row_writes_them(
    kind: str, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_ckpt.operators.task.staging.MIN_SWEPT", 400)
    lab = SessionLab(quick_path, {kind: STATES[kind]})
    for number in range(6):
        answer = lab.run(lambda batch, bound, number=number: _write(kind, number, batch, bound), 3 * HOUR * number)
        assert answer["states"][0]["rows"] <= 2 * ENTRIES + 1
        assert answer["metrics"]["expired_rows_left"] == 0
    assert lab.stored_rows(kind) <= 2 * ENTRIES + 1
    assert lab.stored_rows(index_name(kind)) <= 2 * ENTRIES
    lab.close()


@pytest.mark.parametrize("kind", ["value", "map"])
def test_what_is_left_is_counted_and_goes_while_little_is_written(
    kind: str, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_ckpt.operators.task.staging.MIN_SWEPT", 500)
    lab = SessionLab(quick_path, {kind: STATES[kind]})
    lab.run(lambda batch, bound: _write(kind, 0, batch, bound), 0)
    answers = [lab.run(lambda _batch, _bound: None, 3 * HOUR) for _ in range(3)]
    freed = np.cumsum([answer["metrics"]["expired_rows"] for answer in answers]).tolist()
    assert freed[-1] == ENTRIES
    left = [answer["metrics"]["expired_rows_left"] for answer in answers]
    assert left[0] > 0
    assert left[1] == ENTRIES - freed[1]
    assert left[2] == 0
    lab.close()


class Model:
    """A program that writes at random, and what it must find."""

    def __init__(self, seed: int) -> None:
        self.choose = Random(seed)
        self.now_ms = 0
        self.values: dict[str, tuple[int, int]] = {}
        self.lists: dict[str, list[tuple[int, int]]] = {user: [] for user in USERS}
        self.maps: dict[str, dict[str, tuple[int, int]]] = {user: {} for user in USERS}
        """Each with when it was written."""

    def live(self, rows: Iterable[tuple[int, int]]) -> list[int]:
        return [value for value, at_ms in rows if at_ms > self.now_ms - HOUR]

    def check(self, user: str, bound: dict[str, Any]) -> None:
        """Compare what the states show."""
        live = {entry: row[0] for entry, row in self.maps[user].items() if self.live([row])}
        assert dict(bound["map"].items()) == live
        assert list(bound["list"].get()) == self.live(self.lists[user])
        assert bound["value"].value() == next(iter(self.live([self.values[user]] if user in self.values else [])), None)

    def write(self, user: str, number: int, bound: dict[str, Any]) -> None:
        """Write some rows; often some that have expired."""
        entries, choose = self.maps[user], self.choose
        dead = [entry for entry, row in entries.items() if not self.live([row])]
        for entry in (
            *dead[: choose.randint(0, 3)],
            *(str(choose.randrange(40)) for _ in range(choose.choice([0, 8]))),
        ):
            bound["map"].put(entry, number)
            entries[entry] = number, self.now_ms
        if choose.random() < 0.4:
            bound["value"].update(number)
            self.values[user] = number, self.now_ms
        if choose.random() < 0.2:
            bound["list"].clear()
            self.lists[user].clear()
        elements = [100 * number + place for place in range(choose.choice([0, 1, 20]))]
        bound["list"].add_all(elements)
        self.lists[user].extend((element, self.now_ms) for element in elements)


@pytest.mark.parametrize(
    ("seed", "most_held_bytes"),
    [
        (0, None),
        (4, 8000),
        *(pytest.param(seed, None, marks=pytest.mark.in_turn) for seed in (1, 2, 3)),
    ],
)
def test_live_rows_stay_and_expired_ones_go_when_turns_end_at_different_times(
    seed: int, most_held_bytes: int | None, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some rows are written again when they have expired, in a turn that ends before others begin."""
    monkeypatch.setattr("pyspark_ckpt.operators.task.staging.MIN_SWEPT", 1)
    lab = SessionLab(
        quick_path, {**STATES, "map": (MapState("map", "string", "bigint", ttl="1 hour"), {"key": TEXT, "value": LONG})}
    )
    lab.most_held_bytes = most_held_bytes
    model = Model(seed)
    for number in range(14):
        model.now_ms += model.choose.choice([0, HOUR // 3, HOUR, 3 * HOUR])
        batch, bound = lab.begin(model.now_ms)
        turns = groupby(sorted(USERS, key=suffix_of), lambda user: suffix_of(user)[:HASH_BYTES])
        for hashed, users in turns:
            batch.flush(hashed)
            for user in users:
                batch.at(user)
                model.check(user, bound)
                if model.choose.random() < 0.6:
                    model.write(user, number, bound)
        batch.stage()
        answer = lab.commit(batch)
    rows = {state["name"]: state["rows"] for state in answer["states"]}
    assert {name: lab.stored_rows(name) for name in STATES} == {name: rows[name] for name in STATES}
    written = sum(map(len, model.maps.values()))
    assert sum(len(model.live(entries.values())) for entries in model.maps.values()) <= rows["map"] <= written
    lab.close()
