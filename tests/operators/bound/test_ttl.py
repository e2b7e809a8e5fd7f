"""Time to live: what has expired is not seen, is freed in portions, and lives on when it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ckpt.operators import ListState, MapState, Ttl, ValueState
from pyspark_ckpt.operators.declarations.ttl import Refresh
from pyspark_ckpt.operators.rows.expiry import index_name
from tests.labs.session_lab import HOUR, LONG, TEXT, Batch, SessionLab, keys_of


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
    assert [state["rows"] for state in answer["states"]] == [0, 0]
    assert [lab.stored_rows(kind), lab.stored_rows(index_name(kind))] == [0, 0], "rows and index are freed"
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
    monkeypatch.setattr("pyspark_ckpt.operators.task.staging.MIN_SWEPT", 10)
    lab = SessionLab(tmp_path, {"value": (ValueState("value", "bigint", ttl="1 hour"), {"value": LONG})})
    keys = keys_of([f"{n}" for n in range(25)])
    lab.run(lambda _batch, bound: bound["value"].put(keys, pa.array(range(25), LONG)), now_ms=0)
    freed = [lab.run(lambda _batch, _bound: None, now_ms=3 * HOUR)["metrics"]["expired_rows"] for _ in range(4)]
    assert freed == [10, 10, 5, 0]
    lab.close()


@pytest.mark.parametrize("refresh", ["on_create_and_write", "on_read_and_write"])
def test_lives_of_event_time_begin_with_the_watermark_when_there_was_none(refresh: Refresh, tmp_path: Path) -> None:
    ttl = Ttl("8 hours", clock="event", refresh=refresh)
    states: dict[str, Any] = {
        "value": (ValueState("value", "bigint", ttl=ttl), {"value": LONG}),
        "list": (ListState("list", "bigint", ttl=ttl), {"element": LONG}),
        "map": (MapState("map", "string", "bigint", ttl=ttl), {"key": TEXT, "value": LONG}),
    }
    lab = SessionLab(tmp_path, states)
    first_ms = 500_000 * HOUR

    def write(batch: Batch, bound: dict[str, Any]) -> None:
        batch.at("a")
        bound["value"].update(1)
        bound["list"].add_all([1, 2])
        bound["map"].put("x", 1)

    def look(event_ms: int) -> list[Any]:
        batch, bound = lab.begin({"processing": 0, "event": event_ms})
        batch.at("a")
        found = [bound["value"].value(), list(bound["list"].get()), bound["map"].get("x")]
        batch.abort()
        return found

    lab.run(write, now_ms={"processing": 0, "event": 0})
    assert look(0) == look(first_ms) == [1, [1, 2], 1]
    nothing: Any = lambda _batch, _bound: None  # noqa: E731
    assert lab.run(nothing, now_ms={"processing": 0, "event": first_ms})["metrics"]["expired_rows"] == 0
    assert look(first_ms + 8 * HOUR - 1) == [1, [1, 2], 1]
    assert look(first_ms + 8 * HOUR) == [None, [], None]
    freed = lab.run(nothing, now_ms={"processing": 0, "event": first_ms + 24 * HOUR})
    assert freed["metrics"]["expired_rows"] == 4, "a value, an entry and two elements"
    assert [lab.stored_rows(each) for name in states for each in (name, index_name(name))] == [0] * 6
    lab.close()


def test_lives_begin_in_portions_when_many_were_written_before_there_was_a_watermark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_ckpt.operators.task.staging.MIN_SWEPT", 10)
    ttl = Ttl("1 hour", clock="event")
    lab = SessionLab(tmp_path, {"value": (ValueState("value", "bigint", ttl=ttl), {"value": LONG})})
    keys = keys_of([f"{n}" for n in range(25)])
    lab.run(lambda _batch, bound: bound["value"].put(keys, pa.array(range(25), LONG)), now_ms=0)
    first_ms = 500_000 * HOUR
    freed = []
    for half_hour in range(8):
        batch, bound = lab.begin(first_ms + half_hour * HOUR // 2)
        freed.append(25 - len(bound["value"].get(keys).drop_null()))
        batch.abort()
        lab.run(lambda _batch, _bound: None, now_ms=first_ms + half_hour * HOUR // 2)
    assert freed == [0, 0, 10, 20, 25, 25, 25, 25]
    assert [lab.stored_rows(each) for each in ("value", index_name("value"))] == [0, 0]
    lab.close()
