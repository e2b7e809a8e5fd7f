"""Rows that are converted from arrays to rows by key count as much memory as they take, and survive a failure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_ckpt.operators.rows.state_rows import ARRAYS_BYTES, MAX_SMALL_CALLS, ROW_BYTES
from pyspark_ckpt.state_store.arrays.cells import Cells
from tests.labs.session_lab import STATES, Batch, SessionLab, keys_of

MANY = [f"user {number:04d}" for number in range(400)]
Calls = tuple[Callable[[Any, list[str]], None], Callable[[Any, list[str]], list[int | None]]]


def _put_values(state: Any, users: list[str]) -> None:  # noqa: ANN401
    state.put(keys_of(users), pa.array(range(len(users))))


def _get_values(state: Any, users: list[str]) -> list[int | None]:  # noqa: ANN401
    found: list[int | None] = state.get(keys_of(users)).to_pylist()
    return found


def _put_entries(state: Any, users: list[str]) -> None:  # noqa: ANN401
    index = np.arange(len(users))
    state.put_entries(keys_of(users), index, pa.array(["a"] * len(users)), pa.array(range(len(users))))


def _get_entries(state: Any, users: list[str]) -> list[int | None]:  # noqa: ANN401
    found: list[int | None] = state.get_entries(
        keys_of(users), np.arange(len(users)), pa.array(["a"] * len(users))
    ).to_pylist()
    return found


CALLS: dict[str, Calls] = {"value": (_put_values, _get_values), "map": (_put_entries, _get_entries)}


@pytest.fixture(params=CALLS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_rows_that_take_too_much_memory_by_key_are_spilled_instead(kind: str, tmp_path: Path) -> None:
    put, get = CALLS[kind]
    lab = SessionLab(tmp_path, {kind: STATES[kind]})
    lab.most_held_bytes = (ROW_BYTES + ARRAYS_BYTES) // 2 * len(MANY)
    spills: list[int] = []

    def work(batch: Batch, states: dict[str, Any]) -> None:
        put(states[kind], MANY)
        spills.append(batch.session.moment.spills)
        for _ in range(MAX_SMALL_CALLS + 1):
            assert get(states[kind], MANY[7:8]) != [None]
        spills.append(batch.session.moment.spills)
        assert None not in get(states[kind], MANY)

    try:
        answer = lab.run(work)
        assert spills == [0, 1]
        assert answer["states"][0]["rows"] == lab.stored_rows(kind) == len(MANY)
    finally:
        lab.close()


def test_rows_outlive_a_conversion_that_fails_midway(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, get = CALLS[kind]
    lab = SessionLab(tmp_path, {kind: STATES[kind]})
    strings = Cells.strings

    def fail(_self: Cells) -> list[bytes | None]:
        raise MemoryError

    def work(_batch: Batch, states: dict[str, Any]) -> None:
        state = states[kind]
        put(state, MANY)
        for _ in range(MAX_SMALL_CALLS):
            get(state, MANY[7:8])
        monkeypatch.setattr(Cells, "strings", fail)
        with pytest.raises(MemoryError):
            get(state, MANY[7:8])
        monkeypatch.setattr(Cells, "strings", strings)
        assert None not in get(state, MANY)

    try:
        answer = lab.run(work)
        assert answer["states"][0]["rows"] == lab.stored_rows(kind) == len(MANY)
    finally:
        lab.close()
