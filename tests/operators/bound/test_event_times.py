"""The event times by which rows with a time to live are written: those of rows, of a program, and of no row at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt import testing
from pyspark_ckpt.operators import ListState
from pyspark_ckpt.operators.rows.expiry import index_name
from pyspark_ckpt.state_store.errors import InvalidInputError
from tests.labs.session_lab import HOUR, LONG, Batch, SessionLab, keys_of

BEGIN = datetime(2024, 3, 1, tzinfo=timezone.utc)
COLUMNS, OUTPUT = "k string, at timestamp, n bigint", "k string, told string"
LIFE = ckpt.Ttl("1 hour", clock="event")
OTHER_LIFE = ckpt.Ttl("1 hour")
STATES: dict[str, Any] = {
    "value": ckpt.ValueState("value", "bigint", ttl=LIFE),
    "list": ckpt.ListState("list", "bigint", ttl=LIFE),
    "map": ckpt.MapState("map", "bigint", "bigint", ttl=LIFE),
    "sum": ckpt.ReducingState("sum", "bigint", "sum", ttl=LIFE),
    "mean": ckpt.AggregatingState(
        "mean", "array<bigint>", create=list, add=lambda kept, value: [*kept, value], result=tuple, ttl=LIFE
    ),
}


def after(minutes: float) -> datetime:
    """An instant so many minutes after BEGIN."""
    return BEGIN + timedelta(minutes=minutes)


def by_row(act: Callable[[Any, Any], Any], **more: Any) -> Any:  # noqa: ANN401
    """A program that calls ``act`` with itself and the rows of each key."""

    class ByRow(ckpt.KeyedProcessor):
        def process(self, _ctx: Any, key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
            yield key.k, str(act(self, rows))

    return type("ByRow", (ByRow,), {**STATES, **more})()


def by_column(act: Callable[[Any, Any, Any], Any]) -> Any:  # noqa: ANN401
    """A program that calls ``act`` with itself, the context and the rows of all keys."""

    class ByColumn(ckpt.VectorProcessor):
        def process_batch(self, ctx: Any, batch: Any) -> pa.Table:  # noqa: ANN401
            return pa.table({"k": ["all"], "told": [str(act(self, ctx, batch))]})

    return type("ByColumn", (ByColumn,), STATES)()


def start(program: Any, **more: Any) -> testing.Harness:  # noqa: ANN401
    stream = testing.keyed(COLUMNS, "k", watermark=("at", "0 minutes"), **more)
    return stream.process(program, OUTPUT, "append")


def free(harness: testing.Harness, minutes: float) -> None:
    """Move the watermark on, and free what is dead then."""
    for _ in range(3):  # rows are freed that were dead at the watermark of the batch before
        harness.run([("free", after(minutes), -1)])


def read_written(harness: testing.Harness, state: str) -> dict[str, list[datetime | None]]:
    """When the rows of each key were written; None: they wait for a watermark."""
    found: dict[str, list[datetime | None]] = {}
    with ckpt.reading.open_state(harness.checkpoint, uid="tested", state=state) as reader:
        rows = reader.to_arrow()
    keys, written, expire = rows["key"].to_pylist(), rows["written_at"].to_pylist(), rows["expires_at"].is_valid()
    for key, at, expires in zip(keys, written, expire.to_pylist(), strict=True):
        found.setdefault(key["k"], []).append(at if expires else None)
    return found


def refusals(calls: Mapping[str, Callable[[], object]]) -> list[str]:
    """The messages of calls that must be refused."""
    said = []
    for name, call in calls.items():
        with pytest.raises(InvalidInputError) as problem:
            call()
        assert f"State {name!r}: at= is" in problem.value.message
        said.append(problem.value.message)
    return said


NO_INSTANTS: list[tuple[Any, str]] = [
    ("2024-03-01", "'2024-03-01' of type str, which is not a valid instant"),
    (True, "True of type bool"),
    (1.5, "1.5 of type float"),
    (pd.NaT, "NaT of type NaTType"),
    (pd.Timestamp(1), "which has nanoseconds"),
    (BEGIN.date(), "of type date, which is not a valid instant"),
    ([BEGIN], "of type list"),
    (1 << 62, "of type int, which is not a valid instant"),
    (1_700_000_000_000_000_000, "no timestamp can hold: 1,700,000,000,000,000,000 ms after 1970"),
    (-(1 << 54), "no timestamp can hold"),
]


def test_what_is_no_instant_is_refused_and_changes_nothing() -> None:
    def act(self: Any, rows: Any) -> list[bool]:  # noqa: ANN401
        if rows[0].n:
            told = list[bool]()
            for at, problem in NO_INSTANTS:
                calls = {
                    "value": partial(self.value.update, 2, at=at),
                    "list": partial(self.list.add, 2, at=at),
                    "map": partial(self.map.put, 1, 2, at=at),
                    "sum": partial(self.sum.add, 2, at=at),
                    "mean": partial(self.mean.add, 2, at=at),
                }
                rarely = {
                    "list": partial(self.list.update, [2], at=at),
                    "map": partial(self.map.put_all, {1: 2}, at=at),
                }
                told += [problem in each for each in (*refusals(calls), *refusals(rarely))]
            return told
        write_each(self, 1, {})
        return []

    with start(by_row(act)) as harness:
        harness.run([("a", BEGIN, 0)])
        before = harness.states()
        (row,) = harness.run([("a", after(1), 1)])
        assert row.told == str([True] * 7 * len(NO_INSTANTS))
        assert harness.states() == before
        assert read_written(harness, "list") == {"a": [BEGIN]}


def write_each(self: Any, value: int, given: dict[str, Any]) -> None:  # noqa: ANN401
    """Write one row of each state. ``given``: perhaps at=."""
    self.value.update(value, **given)
    self.list.add(value, **given)
    self.map.put(value, value, **given)
    self.sum.add(value, **given)
    self.mean.add(value, **given)


def write_columns(self: Any, ctx: Any, batch: Any, of_keys: Any, of_rows: Any) -> None:  # noqa: ANN401
    """The same for many keys."""
    keys, index, n = ctx.keys, ctx.key_index, batch["n"]
    self.value.put(keys, pa.array([1] * len(keys), LONG), at=of_keys)
    self.list.add_rows(keys, index, n, at=of_rows)
    self.map.put_entries(keys, index, n, n, at=of_rows)
    self.sum.add_rows(keys, index, n, at=of_rows)
    self.mean.add_rows(keys, index, n, at=of_rows)


def test_columns_that_are_no_instants_are_refused_and_change_nothing() -> None:
    instants = pa.array([BEGIN] * 3, pa.timestamp("us", "UTC"))
    wrong: list[tuple[Any, str]] = [
        (instants, "is timestamp[us, tz=UTC] of 3 rows"),
        (instants[:1], "is timestamp[us, tz=UTC] of 1 rows"),
        (pa.array([0, 0]), "is int64 of 2 rows"),
        (pa.array([1 << 60, 0], pa.timestamp("s")), "no timestamp can hold"),
        (np.array([BEGIN.replace(tzinfo=None)] * 2, "datetime64[us]"), "of type ndarray, which is not a valid instant"),
        ([BEGIN, BEGIN], "of type list, which is not a valid instant"),
        ("now", "'now' of type str"),
    ]

    def act(self: Any, ctx: Any, batch: Any) -> list[bool]:  # noqa: ANN401
        if not batch["n"][0].as_py():
            write_columns(self, ctx, batch, None, None)
            return []
        keys, index, n, told = ctx.keys, ctx.key_index, batch["n"], []
        lists = pa.array([[1], [2]], pa.list_(LONG))
        for at, problem in wrong:
            calls = {
                "value": partial(self.value.put, keys, n, at=at),
                "list": partial(self.list.add_rows, keys, index, n, at=at),
                "map": partial(self.map.put_entries, keys, index, n, n, at=at),
                "sum": partial(self.sum.add_rows, keys, index, n, at=at),
                "mean": partial(self.mean.add_rows, keys, index, n, at=at),
            }
            rarely = {"list": partial(self.list.put_lists, keys, lists, at=at)}
            told += [problem in each for each in (*refusals(calls), *refusals(rarely))]
        return told

    with start(by_column(act)) as harness:
        harness.run([("a", BEGIN, 0), ("b", BEGIN, 0)])
        before = harness.states()
        (row,) = harness.run([("a", after(1), 1), ("b", after(1), 1)])
        assert row.told == str([True] * 6 * len(wrong))
        assert harness.states() == before
        assert read_written(harness, "list") == {"a": [BEGIN], "b": [BEGIN]}


def test_states_that_do_not_live_by_event_time_refuse_an_instant() -> None:
    others = {"value": ckpt.ValueState("value", "bigint", ttl=OTHER_LIFE), "list": ckpt.ListState("list", "bigint")}

    def act(self: Any, _rows: Any) -> None:  # noqa: ANN401
        for call in (self.value.update, self.list.add):
            with pytest.raises(InvalidInputError, match="at= is given, but the state has no time to live in event"):
                call(1, at=BEGIN)

    with start(by_row(act, **others)) as harness:
        harness.run([("a", BEGIN, 0)])
        assert harness.state("value") == harness.state("list") == {}


INSTANTS = [
    BEGIN,
    BEGIN.replace(tzinfo=None),  # a naive one is UTC
    BEGIN.astimezone(timezone(timedelta(hours=5))),
    np.datetime64(BEGIN.replace(tzinfo=None)),
    int(BEGIN.timestamp() * 1000),
    pd.Timestamp(BEGIN),
]


def test_one_instant_is_the_time_of_a_write_in_any_form() -> None:
    with start(by_row(lambda self, rows: write_each(self, 1, {"at": INSTANTS[rows[0].n]}))) as harness:
        harness.run([(f"{n}", after(30), n) for n in range(len(INSTANTS))])
        for name in STATES:
            assert read_written(harness, name) == {f"{n}": [BEGIN] for n in range(len(INSTANTS))}


@pytest.mark.parametrize("kind", ["us,UTC", "us", "ns,Europe/Berlin", "s,UTC", "ms"])
def test_a_column_has_a_time_for_each_row_and_null_leaves_that_of_the_call(kind: str) -> None:
    unit, *zone = kind.split(",")

    def act(self: Any, ctx: Any, batch: Any) -> None:  # noqa: ANN401
        said = {"a": BEGIN, "b": None}
        of_keys, of_rows = (
            pa.array([said[each] for each in names.to_pylist()], pa.timestamp("us", "UTC")).cast(
                pa.timestamp(unit, *zone)
            )
            for names in (ctx.keys.column("k"), batch["k"])
        )
        write_columns(self, ctx, batch, of_keys, of_rows)

    with start(by_column(act)) as harness:
        harness.run([("a", after(30), 1), ("b", after(20), 1), ("a", after(40), 1), ("b", after(45), 2)])
        assert read_written(harness, "value") == {"a": [BEGIN], "b": [after(45)]}
        assert read_written(harness, "list") == {"a": [BEGIN, BEGIN], "b": [after(20), after(45)]}
        assert read_written(harness, "map") == {"a": [BEGIN], "b": [after(20), after(45)]}
        assert read_written(harness, "sum") == read_written(harness, "mean") == {"a": [BEGIN], "b": [after(45)]}


@pytest.mark.parametrize("program", ["by row", "by column"])
def test_a_write_never_shortens_a_life_unless_the_row_was_cleared(program: str) -> None:
    """An element of a list replaces none."""

    def act_by_row(self: Any, rows: Any) -> None:  # noqa: ANN401
        if rows[0].n == 2:
            for each in (self.value, self.map, self.sum, self.mean):
                each.clear()
        self.value.update(1, at=rows[0].at)
        self.map.put(1, 1, at=rows[0].at)
        self.sum.add(1, at=rows[0].at)
        self.mean.add(1, at=rows[0].at)

    def act_by_column(self: Any, ctx: Any, batch: Any) -> None:  # noqa: ANN401
        keys, index, at, ones = ctx.keys, ctx.key_index, batch["at"], pa.array([1], LONG)
        if batch["n"][0].as_py() == 2:
            for each in (self.value, self.map, self.sum, self.mean):
                each.clear_keys(keys)
        self.value.put(keys, ones, at=at)
        self.map.put_entries(keys, index, ones, ones, at=at)
        self.sum.add_rows(keys, index, ones, at=at)
        self.mean.add_rows(keys, index, ones, at=at)

    made = by_row(act_by_row) if program == "by row" else by_column(act_by_column)
    stream = testing.keyed(COLUMNS, "k", watermark=("at", "1 hour"))
    with stream.process(made, OUTPUT, "append") as harness:
        for n, (minutes, written) in enumerate([(30, 30), (20, 30), (10, 10), (40, 40)]):
            harness.run([("a", after(minutes), n)])
            for name in ("value", "map", "sum", "mean"):
                assert read_written(harness, name) == {"a": [after(written)]}


def test_instants_at_the_ends_of_time_are_taken() -> None:
    last = datetime.max.replace(tzinfo=timezone.utc, microsecond=0)

    def act(self: Any, rows: Any) -> Any:  # noqa: ANN401
        if rows[0].n == 0:
            self.list.add_all([1, 2], at=last)
            self.map.put(1, 1, at=datetime(1, 1, 1, tzinfo=timezone.utc))
            self.value.update(1, at=-5)
        return list(self.list.get()), self.value.value(), list(self.map.keys())

    with start(by_row(act)) as harness:
        harness.run([("a", BEGIN, 0)])
        assert read_written(harness, "list") == {"a": [last, last]}
        (row,) = harness.run([("a", after(10_000), 1)])
        assert row.told == "([1, 2], None, [])"
        free(harness, 10_000)
        assert read_written(harness, "value") == read_written(harness, "map") == {}


@pytest.mark.parametrize("program", ["by row", "by column"])
def test_rows_without_a_time_have_that_of_the_watermark(program: str) -> None:
    """Before there is a watermark, their lives wait for the first one."""
    acts = {
        "by row": by_row(lambda self, _rows: write_each(self, 1, {})),
        "by column": by_column(lambda self, ctx, batch: write_columns(self, ctx, batch, None, None)),
    }
    with start(acts[program]) as harness:
        harness.run([("a", None, 1), ("b", BEGIN, 1), ("c", None, 1), ("c", after(5), 1)])
        assert harness.watermark == after(5)
        for name in ("value", "sum", "mean"):
            assert read_written(harness, name) == {"a": [None], "b": [BEGIN], "c": [after(5)]}
        harness.run([("d", None, 1), ("e", after(30), 1)])
        for name in STATES:
            found = read_written(harness, name)
            assert (found["a"], found["d"], found["e"]) == ([after(5)], [after(5)], [after(30)])
        free(harness, 80)
        assert {each for name in STATES for each in read_written(harness, name)} == {"e", "free"}


def test_late_rows_are_read_and_written_as_of_the_watermark() -> None:
    class Late(ckpt.KeyedProcessor):
        value = STATES["value"]
        list = STATES["list"]

        def process(self, _ctx: Any, _key: Any, rows: Any) -> None:  # noqa: ANN401
            for row in rows:
                self.value.update(row.n)

        def process_late(self, _ctx: Any, key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
            for row in rows:
                yield key.k, f"{row.n} {self.value.value()}"
                self.list.add(row.n)
                self.list.add(row.n, at=row.at)

    with start(Late()) as harness:
        harness.run([("a", BEGIN, 1)])
        harness.run([("b", after(70), 2)])
        harness.run()
        assert harness.watermark == after(70)
        (row,) = harness.run([("a", after(-5), 3)])
        assert row.told == "3 None", "the value is dead at the watermark, though not when the row was"
        assert harness.metrics["late_rows"] == 1
        assert read_written(harness, "list") == {"a": [after(70), after(-5)]}
        assert harness.state("list") == {("a",): [3]}


@pytest.mark.parametrize("takes_rows", [False, True])
@pytest.mark.parametrize("has_time", [False, True])
def test_the_initial_state_is_of_the_time_in_its_column(*, has_time: bool, takes_rows: bool) -> None:
    """Without one, its lives wait for the first watermark."""

    class Plain(ckpt.KeyedProcessor):
        at = ckpt.ValueState("at", "timestamp", ttl=LIFE)
        list = ckpt.ListState("list", "array<bigint>" if takes_rows else "bigint", ttl=LIFE)

        def process(self, _ctx: Any, _key: Any, _rows: Any) -> None:  # noqa: ANN401
            """Only the initial state is there."""

    class Takes(Plain):
        def process_initial(self, _ctx: Any, _key: Any, rows: Any) -> None:  # noqa: ANN401
            for row in rows:
                self.at.update(BEGIN)
                self.list.add_all([row.list, row.list])

    given = after(9)
    columns = f"k string, list array<bigint>{', at timestamp' if has_time else ''}"
    rows = [("a", [1, 2], given), ("b", [3, 4], None)] if has_time else [("a", [1, 2]), ("b", [3, 4])]
    stream = testing.keyed(COLUMNS, "k", watermark=("at", "0 minutes"))
    program = Takes() if takes_rows else Plain()
    with stream.process(program, OUTPUT, "append", initial_state=testing.Rows(columns, rows)) as harness:
        harness.run([("x", after(60), 0)])
        assert read_written(harness, "list") == {"a": [given if has_time else None] * 2, "b": [None] * 2}
        harness.run([("x", after(69), 0)])
        assert read_written(harness, "list") == {"a": [given if has_time else after(60)] * 2, "b": [after(60)] * 2}
        free(harness, 80)
        assert set(read_written(harness, "list")) == ({"b"} if has_time else {"a", "b"})


@pytest.mark.parametrize("many_keys", [False, True])
def test_a_list_loses_its_head_with_its_last_element_in_whatever_order_they_expire(
    tmp_path: Path,
    many_keys: bool,  # noqa: FBT001 - a case
) -> None:
    """The newest element is not the last one to expire if a program writes it as of an earlier time."""
    lab = SessionLab(tmp_path, {"list": (ListState("list", "bigint", ttl=LIFE), {"element": LONG})})
    begin_ms = 500_000 * HOUR
    at_hours = [9, 3, 3, 0, 6]

    def write(batch: Batch, bound: dict[str, Any]) -> None:
        batch.at("a")
        for value, hours in enumerate(at_hours):
            at_ms = begin_ms + hours * HOUR
            if many_keys:
                keys = keys_of(["a"])
                instants = pa.array([at_ms * 1000], pa.timestamp("us", "UTC"))
                bound["list"].add_rows(keys, np.zeros(1, np.int64), pa.array([value], LONG), at=instants)
            else:
                bound["list"].add(value, at=at_ms)

    def look(hour: int) -> list[int]:
        batch, bound = lab.begin(begin_ms + hour * HOUR)
        batch.at("a")
        found = list(bound["list"].get())
        batch.abort()
        return found

    lab.run(write, begin_ms)
    for hour in range(11):
        now_ms = begin_ms + hour * HOUR
        alive = [value for value, hours in enumerate(at_hours) if hours > hour - 1]
        assert look(hour) == alive
        answer = lab.run(lambda _batch, _bound: None, now_ms + HOUR // 8)
        left = lab.stored_rows("list")
        assert answer["states"][0]["rows"] == left, "the count is exact"
        assert left == len(alive) + bool(alive), "the elements and the head"
    assert lab.stored_rows(index_name("list")) == 0
    lab.run(write, begin_ms)
    assert look(0) == list(range(len(at_hours)))
    lab.close()
