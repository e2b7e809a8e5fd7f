# mypy: disable-error-code="attr-defined, arg-type"
# ruff: noqa: ANN401, PLW0108 - the programs are untyped, and only one of the calls exists
"""Random programs with states that live by event time, of which no result may depend on the cuts into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import pyspark_ckpt as ckpt
from pyspark_ckpt import testing
from pyspark_ckpt.testing.harness import Harness

BEGIN = datetime(2024, 3, 1, tzinfo=timezone.utc)
DELAY = 20
"""The delay of the watermark, in minutes."""
FORMS, CONNECTED = 5, 4
"""How many forms of programs there are, and which of them has two inputs."""
COLUMNS, LINES, COUNTS = (
    "k string, at timestamp, n bigint",
    "k string, what string, told string",
    "k string, told string",
)


@dataclass(frozen=True)
class Example:
    """A program and its rows, which come in order within each key."""

    start: Callable[[], Harness]
    rows: Any


def draw_rows(draw: Random, count: int) -> list[tuple[str, datetime, int]]:
    """Rows of some keys, with pauses of minutes and of hours. None is late, however batches are cut."""
    rows, minutes, last = [], 0.0, dict[str, timedelta]()
    for n in range(count):
        minutes += draw.choice((0, 1, 5, 9.5, 17, 30, 75, 400))
        key, back = draw.choice("ab"), draw.choice((0, 0, 3, DELAY - 1))
        at = timedelta(minutes=minutes - back, microseconds=draw.randrange(3) * 500)
        last[key] = max(last.get(key, at), at)
        rows.append((key, BEGIN + last[key], n))
    return rows


def make_example(seed: int, count: int) -> Example:
    """Return the example of a seed, with so many rows: each form of program in turn."""
    draw = Random(seed)
    form = (_by_row, _by_call, _vectorised, _of_timers, _connected)[seed % FORMS]
    return form(draw, draw_rows(draw, count))


def _ttl(draw: Random, *, refresh: bool = True, shown: bool = False) -> ckpt.Ttl:
    how = draw.choice(("on_create_and_write", "on_read_and_write")) if refresh else "on_create_and_write"
    return ckpt.Ttl(timedelta(minutes=draw.choice((10, 33, 60, 180, 500))), how, "event", shown)


def _counted(kept: Any, value: int) -> tuple[int, int]:
    return kept[0] + 1, kept[1] + value


def _states(draw: Random, **ttl: Any) -> dict[str, Any]:
    aggregate = {"create": lambda: (0, 0), "add": _counted, "result": tuple}
    return {
        "value": ckpt.ValueState("value", "bigint", ttl=_ttl(draw, **ttl)),
        "list": ckpt.ListState("list", "bigint", ttl=_ttl(draw, **ttl)),
        "map": ckpt.MapState("map", "bigint", "bigint", ttl=_ttl(draw, **ttl)),
        "sum": ckpt.ReducingState("sum", "bigint", "sum", ttl=_ttl(draw, **ttl)),
        "mean": ckpt.AggregatingState("mean", "struct<n bigint, total bigint>", **aggregate, ttl=_ttl(draw, **ttl)),
    }


def _act(self: Any, draw: Random, row: Any) -> Any:
    """Do something with one state, at the time of a row or at another one. Return what it says."""
    name = draw.choice(("value", "list", "map", "sum", "mean"))
    state, n, m = getattr(self, name), row.n, draw.randrange(6)
    at = draw.choice((None, None, None, row.at, row.at - timedelta(minutes=draw.randrange(40))))
    acts: dict[str, Sequence[Callable[[], Any]]] = {
        "value": [lambda: state.value(), lambda: state.exists(), lambda: state.update(n, at=at)],
        "list": [lambda: list(state.get()), lambda: state.exists(), lambda: state.add(n, at=at)],
        "map": [
            lambda: dict(state.items()),
            lambda: list(state.keys()),
            lambda: dict(state.items(2, 5)),
            lambda: (state.get(m), state.contains(m), state.is_empty()),
            lambda: state.put(m, n, at=at),
            lambda: state.put_all({m: n, m + 1: n}, at=at),
            lambda: state.remove(m),
        ],
        "sum": [lambda: state.get(), lambda: state.add(n, at=at)],
        "mean": [lambda: state.get(), lambda: state.add(n, at=at)],
    }
    rarely = {"list": [lambda: state.add_all([n, n + 1], at=at), lambda: state.update([n], at=at)]}
    if draw.random() < 0.08:
        return state.clear()
    return draw.choice([*acts[name], *rarely.get(name, ())])()


def _tell(self: Any, rows: Sequence[Any], seed: int, name: str = "") -> Iterator[tuple[str, str, str]]:
    for row in rows:
        draw = Random(seed * 1000 + row.n)
        for place in range(4):
            told = _act(self, draw, row)
            yield row.k, f"{name}{row.n}.{place}", repr(told)


def _by_row(draw: Random, rows: list[Any]) -> Example:
    """Each row reads and writes."""
    seed = draw.randrange(1 << 30)

    class ByRow(ckpt.KeyedProcessor):
        def process(self, _ctx: Any, _key: Any, rows: Any) -> Any:
            yield from _tell(self, rows, seed)

    return Example(_keyed(type("ByRow", (ByRow,), _states(draw)), LINES, draw, "append"), rows)


def _keyed(program: Any, output: str, draw: Random, mode: str = "update") -> Callable[[], Harness]:
    conf = {"spark.sql.streaming.stateStore.ckpt.workerMemory": draw.choice(("64m", "1m"))}
    stream = testing.keyed(COLUMNS, "k", watermark=("at", f"{DELAY} minutes"), conf=conf)
    return lambda: stream.process(program(), output, mode)


def _by_call(draw: Random, rows: list[Any]) -> Example:
    """Each call reads and writes once for all of its rows, or says when what it writes was."""
    reads_last = draw.random() < 0.5

    class ByCall(ckpt.KeyedProcessor):
        blind = ckpt.ListState("blind", "bigint", ttl=_ttl(draw, shown=True))
        entries = ckpt.MapState("entries", "bigint", "bigint", ttl=_ttl(draw, shown=True))

        def process(self, _ctx: Any, key: Any, rows: Any) -> Any:
            total = sum(row.n for row in rows) if reads_last else 0
            count = (self.value.value() or 0) + len(rows)
            total = total if reads_last else sum(row.n for row in rows)
            self.value.update(count)
            self.sum.add(total)
            for row in sorted(rows, key=lambda row: row.n):
                self.entries.put(row.n % 4, row.n, at=row.at)
                self.blind.add(row.n, at=row.at)
            known = self.map.get(0, 0) + len(rows)
            self.map.put(0, known)
            yield key.k, repr((count, self.sum.get(), known))

    states = _states(draw)
    program = type("ByCall", (ByCall,), {name: states[name] for name in ("value", "sum", "map")})
    return Example(_keyed(program, COUNTS, draw), rows)


def _vectorised(draw: Random, rows: list[Any]) -> Example:
    """The rows of a call, and timers, find entries that earlier rows wrote."""
    back, gives_at = draw.randrange(1, 3), draw.random() < 0.5
    after = timedelta(minutes=draw.choice((5, 30, 200)))

    class Vectorised(ckpt.VectorProcessor):
        due = ckpt.Timers("due", clock="event")

        def process_batch(self, ctx: Any, batch: pa.Table) -> pa.Table:
            keys, index, n = ctx.keys, ctx.key_index, batch["n"]
            at = batch["at"] if gives_at else None
            count = pc.add(pc.fill_null(self.value.get(keys), 0), pa.array(np.bincount(index, minlength=len(keys))))
            self.value.put(keys, count)
            self.sum.add_rows(keys, index, n)
            self.mean.add_rows(keys, index, n)
            self.list.add_rows(keys, index, n, at=at)
            self.map.put_entries(keys, index, n, n, at=at)
            found = self.map.contains_entries(keys, index, pc.subtract(n, back))
            self.due.register_rows(keys, index, pc.add(batch["at"], pa.scalar(after)), "x")
            told = list(map(str, found.to_pylist()))
            what = [f"row {each}" for each in n.to_pylist()]
            return pa.table({"k": batch["k"], "what": what, "told": told})

        def process_timers(self, ctx: Any, timers: pa.Table) -> pa.Table:
            keys, index = ctx.keys, ctx.key_index
            told, instants = [""] * len(timers), timers["at"].to_pylist()
            for _, at, n in rows:
                found = self.map.get_entries(keys, index, pa.array([n] * len(timers), pa.int64())).to_pylist()
                for place, each in enumerate(found):
                    told[place] += f" {each}" if at <= instants[place] else ""
            what = [f"timer {at}" for at in instants]
            return pa.table({"k": keys.column("k").take(pa.array(index)), "what": what, "told": told})

    program = type("Vectorised", (Vectorised,), _states(draw, refresh=False))
    return Example(_keyed(program, LINES, draw, "append"), rows)


def _of_timers(draw: Random, rows: list[Any]) -> Example:
    """Rows only add. Timers tell what is there as of their time, and write."""
    return Example(_keyed(_make_timed(draw), LINES, draw, "append"), rows)


def _connected(draw: Random, rows: list[Any]) -> Example:
    """Two inputs, of which one may be far behind the other, share states and timers."""
    program, merges = _make_timed(draw, has_list=False), draw.random() < 0.5
    given = {name: testing.InputColumns(COLUMNS, "k", "at", ("at", f"{DELAY} minutes")) for name in ("left", "right")}
    stream = testing.keyed_inputs(merge=merges, **given)
    return Example(
        lambda: stream.process(program(), LINES, "append"),
        {"left": [row for row in rows if row[2] % 3], "right": [row for row in rows if row[2] % 3 == 0]},
    )


def _make_timed(draw: Random, *, has_list: bool = True) -> Any:
    """``has_list``: rows of one key come in the same order, whatever the cuts."""
    after = [timedelta(minutes=draw.choice((5, 30, 61, 200))) for _ in range(2)]
    adds_at = draw.random() < 0.5

    class OfTimers(ckpt.KeyedProcessor):
        due = ckpt.Timers("due", clock="event")
        fired = ckpt.ReducingState("fired", "bigint", "sum", ttl=_ttl(draw))
        left = ckpt.ListState("left", "timestamp", ttl=_ttl(draw))
        list = ckpt.ListState("list", "struct<at timestamp, n bigint>", ttl=_ttl(draw, refresh=False))
        map = ckpt.MapState("map", "bigint", "timestamp", ttl=_ttl(draw, refresh=False))
        touched = ckpt.ValueState("touched", "bigint", ttl=_ttl(draw))
        touches = ckpt.MapState("touches", "bigint", "bigint", ttl=_ttl(draw))

        def touch(self, n: int) -> None:
            """Write what rows and timers alike write: the latest of their times counts, whichever come first."""
            self.touched.update(0)
            self.touches.put(n % 2, 0)

        def process(self, _ctx: Any, _key: Any, rows: Any) -> None:
            for row in rows:
                self.touch(row.n)
                if has_list:
                    self.list.add((row.at, row.n), at=row.at if adds_at else None)
                self.map.put(row.n, row.at)
                for each in after:
                    self.due.register(row.at + each)

        process_left = process_right = process

        def on_timer(self, _ctx: Any, key: Any, timer: Any) -> Any:
            seen = sorted(each.n for each in self.list.get() if each.at <= timer.at)
            entries = [n for n, at in self.map.items() if at <= timer.at]
            self.fired.add(1)
            self.left.add(timer.at)
            self.touch(timer.at.minute)
            yield key.k, str(timer.at), repr((seen, entries, self.fired.get(), len(list(self.left.get()))))

    return OfTimers
