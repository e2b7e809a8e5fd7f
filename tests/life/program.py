"""The program: it does with its states what its rows say, and tells what it has read, in both forms of processor.

A row has a list of acts, each ``[state, act, number, more]``; a timer has those that belong to its namespace. Both
forms tell the same.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from datetime import datetime, timedelta, timezone
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

import pyspark_ckpt as ckpt
from tests.life.rules import KeyedRules, VectorRules
from tests.life.states import DECLARED, PLANS, Plan, added_value, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Act = tuple[str, str, int, int]

INPUT = "k string, w bigint, seq bigint, at timestamp, acts string, load string"
OUTPUT = "k string, w bigint, what string, shown string"
READS = {
    "value": ("get",),
    "list": ("get",),
    "map": ("items", "range", "get", "contains"),
    "reducing": ("get",),
    "aggregating": ("get",),
}
READS_WITHOUT_LIFE = {"value": ("exists",), "list": ("exists",), "map": ("keys", "exists")}
"""Those that need not read all rows: so whether they begin lives anew is not asked."""
WRITES = {
    "value": ("put", "put", "put", "clear"),
    "list": ("add", "add", "add_all", "put", "clear"),
    "map": ("put", "put", "put_all", "remove", "clear"),
    "reducing": ("add", "add", "add", "clear"),
    "aggregating": ("add", "add", "add", "clear"),
}
AGAIN_US = 37 * 60_000_001
FAR_MS = 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def draw_act(draw: Random) -> Act:
    """An act on a state."""
    name = draw.choice(list(PLANS))
    plan = PLANS[name]
    acts = [*READS[plan.kind], *WRITES[plan.kind]]
    if plan.ttl is None or plan.ttl.refresh == "on_create_and_write":
        acts += READS_WITHOUT_LIFE.get(plan.kind, ())
    return name, draw.choice(acts), draw.randrange(1000), draw.randrange(6)


def acts_of_timer(namespace: str) -> list[Act]:
    """What is done when a timer of this namespace fires."""
    draw = Random(namespace)
    return [draw_act(draw) for _ in range(draw.randint(1, 3))]


def fires_again(namespace: str) -> str | None:
    """The namespace of the timer that one sets when it fires, if it sets any."""
    return None if namespace.startswith("again") or len(namespace) % 2 else f"again {namespace}"


def instant(at_us: int, draw: str) -> Any:  # noqa: ANN401
    """An instant in one of the forms in which timers take it."""
    at = _EPOCH + timedelta(microseconds=at_us)
    east = timezone(timedelta(hours=5, minutes=45))
    forms = [at, at.replace(tzinfo=None), at.astimezone(east), pd.Timestamp(at), np.datetime64(at_us, "us")]
    if at_us % 1000 == 0:
        forms += [at_us // 1000, np.int64(at_us // 1000)]
    return forms[zlib.crc32(draw.encode()) % len(forms)]


def instants(at_us: int, draw: str) -> pa.Array:
    """The same as a column."""
    kinds = [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.timestamp("ns", "Asia/Kathmandu")]
    kind = kinds[zlib.crc32(draw.encode()) % len(kinds)]
    return pa.array([at_us], pa.int64()).cast(pa.timestamp("us", kind.tz)).cast(kind)


def map_keys_of(plan: Plan, number: int, count: int) -> list[Any]:
    """Keys of a map: few, so that they are met again."""
    return [plan.types[0].value(1 + (number + n) % 12) for n in range(count)]


def bounds_of(plan: Plan, number: int, more: int) -> tuple[Any, Any]:
    """The bounds of a range of a map's keys, in their order; None for none."""
    first, last = sorted(map_keys_of(plan, number, 1) + map_keys_of(plan, number * 7 + more, 1))
    return (None if more == 0 else first), (None if more == 1 else last)


def do(state: Any, plan: Plan, act: str, number: int, more: int) -> Any:  # noqa: ANN401, C901, PLR0911, PLR0912
    """One act on the state of the current key; what it has read, or None."""
    value = plan.type.value
    if act == "exists":
        return not state.is_empty() if plan.kind == "map" else state.exists()
    if act == "clear":
        return state.clear()
    if plan.kind == "value":
        return state.value() if act == "get" else state.update(value(number))
    if plan.kind in ("reducing", "aggregating"):
        return state.get() if act == "get" else state.add(added_value(plan, number))
    if plan.kind == "list":
        if act == "get":
            return list(state.get())
        if act == "add":
            return state.add(value(number))
        values = [value(number + n) for n in range(more)]
        return state.add_all(values) if act == "add_all" else state.update(values)
    (key,) = map_keys_of(plan, number, 1)
    if act == "get":
        return state.get(key)
    if act == "contains":
        return state.contains(key)
    if act == "keys":
        return list(state.keys())
    if act == "items":
        return list(state.items())
    if act == "range":
        return list(state.items(*bounds_of(plan, number, more)))
    if act == "put":
        return state.put(key, value(number))
    if act == "remove":
        return state.remove(key)
    keys = map_keys_of(plan, number, more)
    return state.put_all({each: value(number + n) for n, each in enumerate(keys)})


def is_read(act: str) -> bool:
    """Whether an act tells something."""
    return act in ("get", "exists", "items", "range", "contains", "keys")


class KeyedLife(ckpt.KeyedProcessor):
    """The program, one key after the other."""

    due = ckpt.Timers("due", clock="event")

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        """Do what the rows say."""
        for row in rows:
            for place, act in enumerate(json.loads(row.acts)):
                if act[0] in ("due", "wall"):
                    self._set_timer(ctx, act)
                else:
                    yield from self._told(key, f"{row.seq}.{place}", act)
            yield key.k, key.w, f"{row.seq} load", shown(row.load)
            yield from ((key.k, key.w, what, shown(found)) for what, found in self.tell_rules(row.seq))

    def tell_rules(self, _seq: int) -> Iterator[tuple[str, Any]]:
        """Tell nothing: there are no rules."""
        return iter(())

    process_left = process_right = process

    def on_timer(self, ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        """Do what the namespace says."""
        what = f"{timer.name} {timer.namespace}"
        yield key.k, key.w, what, told_of_timer(timer.name, timer.at_us, ctx)
        for place, act in enumerate(acts_of_timer(timer.namespace)):
            yield from self._told(key, f"{what}.{place}", act)
        again = fires_again(timer.namespace)
        if again and timer.name == "due":
            self.due.register(instant(timer.at_us + AGAIN_US, again), again)

    def _told(self, key: Any, what: str, act: Act) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        name, verb, number, more = act
        found = do(getattr(self, name), PLANS[name], verb, number, more)
        if is_read(verb):
            yield key.k, key.w, f"{what} {name} {verb}", shown(found)

    def _set_timer(self, ctx: ckpt.Context, act: Sequence[Any]) -> None:
        name, verb, at_us, namespace = act
        timers = getattr(self, name)
        if name == "wall":
            at_us += ctx.processing_time_ms * 1000
        if verb != "delete":
            timers.register(instant(at_us, f"register {namespace}"), namespace)
        if verb != "register":
            timers.delete(instant(at_us, f"delete {namespace}"), namespace)


class VectorLife(ckpt.VectorProcessor):
    """The program for many keys at once: the first acts of all keys, then their second ones, and so on."""

    due = ckpt.Timers("due", clock="event")

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        """Do what the rows say."""
        lines: list[Sequence[Any]] = []
        acts: dict[int, list[tuple[str, Any]]] = defaultdict(list)
        columns = (batch.column(name).to_pylist() for name in ("seq", "acts", "load"))
        for at, seq, text, load in zip(ctx.key_index.tolist(), *columns, strict=True):
            acts[at] += [(f"{seq}.{place}", act) for place, act in enumerate(json.loads(text))]
            lines.append((at, f"{seq} load", shown(load)))
            lines += [(at, what, shown(found)) for what, found in self.tell_rules(seq)]
        self._do_all(ctx, acts, lines)
        return self._output(ctx, lines)

    def tell_rules(self, _seq: int) -> Iterator[tuple[str, Any]]:
        """Tell nothing: there are no rules."""
        return iter(())

    process_left_batch = process_right_batch = process_batch

    def process_timers(self, ctx: ckpt.VectorContext, timers: pa.Table) -> pa.Table:
        """Do what the namespaces say."""
        lines: list[Sequence[Any]] = []
        acts: dict[int, list[tuple[str, Any]]] = defaultdict(list)
        columns = (timers.column(name).to_pylist() for name in ("name", "namespace", "at"))
        for at, name, namespace, set_to in zip(ctx.key_index.tolist(), *columns, strict=True):
            what, at_us = f"{name} {namespace}", (set_to - _EPOCH) // timedelta(microseconds=1)
            lines.append((at, what, told_of_timer(name, at_us, ctx)))
            acts[at] += [(f"{what}.{place}", act) for place, act in enumerate(acts_of_timer(namespace))]
            again = fires_again(namespace)
            if again and name == "due":
                acts[at].append(("", ("due", "register", at_us + AGAIN_US, again)))
        self._do_all(ctx, acts, lines)
        return self._output(ctx, lines)

    def _do_all(
        self, ctx: ckpt.VectorContext, acts: dict[int, list[tuple[str, Any]]], lines: list[Sequence[Any]]
    ) -> None:
        for turn in range(max(map(len, acts.values()), default=0)):
            alike: dict[tuple[str, str], list[tuple[int, str, int, int]]] = defaultdict(list)
            for at in sorted(acts):
                if turn < len(acts[at]):
                    what, (name, verb, number, more) = acts[at][turn]
                    if name in ("due", "wall"):
                        self._set_timer(ctx, at, name, verb, number, more)
                    else:
                        alike[name, verb].append((at, what, number, more))
            for (name, verb), some in alike.items():
                found = do_many(getattr(self, name), PLANS[name], verb, ctx.keys, some)
                if is_read(verb):
                    told = zip(some, found, strict=True)
                    lines += [(at, f"{what} {name} {verb}", shown(each)) for (at, what, _, _), each in told]

    def _set_timer(self, ctx: ckpt.VectorContext, at: int, name: str, verb: str, at_us: int, namespace: Any) -> None:  # noqa: ANN401
        timers = getattr(self, name)
        if name == "wall":
            at_us += ctx.processing_time_ms * 1000
        if verb != "delete":
            timers.register_rows(ctx.keys, np.array([at]), instants(at_us, f"register {namespace}"), namespace)
        if verb != "register":
            timers.delete_rows(ctx.keys, np.array([at]), instants(at_us, f"delete {namespace}"), namespace)

    @staticmethod
    def _output(ctx: ckpt.VectorContext, lines: list[Sequence[Any]]) -> pa.Table:
        at = pa.array([line[0] for line in lines], pa.int64())
        columns = {name: ctx.keys.column(name).take(at) for name in ("k", "w")}
        texts = {name: pa.array([line[n] for line in lines], pa.string()) for n, name in ((1, "what"), (2, "shown"))}
        return pa.table({**columns, **texts})


def do_many(state: Any, plan: Plan, act: str, keys: Any, some: Sequence[tuple[int, str, int, int]]) -> Any:  # noqa: ANN401, C901, PLR0911, PLR0912
    """One act on the states of some keys, whose positions rise; for each what was read."""
    keys = keys.at(np.array([at for at, _, _, _ in some]))
    numbers = [(number, more) for _, _, number, more in some]
    each = np.arange(len(some))
    if act == "exists":
        return state.exists_keys(keys).to_pylist()
    if act == "clear":
        return state.clear_keys(keys)
    arrow, value = plan.type.arrow, plan.type.value
    if plan.kind == "value":
        if act == "get":
            return state.get(keys).to_pylist()
        return state.put(keys, pa.array([value(number) for number, _ in numbers], arrow))
    if plan.kind == "reducing":
        if act == "get":
            return state.get_values(keys).to_pylist()
        return state.add_rows(keys, each, pa.array([value(number) for number, _ in numbers], arrow))
    if plan.kind == "aggregating":
        return state.get_results(keys) if act == "get" else state.add_rows(keys, each, [n for n, _ in numbers])
    if plan.kind == "list":
        if act == "get":
            return state.get_lists(keys).to_pylist()
        if act == "put":
            lists = [[value(number + n) for n in range(more)] for number, more in numbers]
            return state.put_lists(keys, pa.array(lists, pa.list_(arrow)))
        counts = [1 if act == "add" else more for _, more in numbers]
        added = [value(number + n) for (number, _), count in zip(numbers, counts, strict=True) for n in range(count)]
        return state.add_rows(keys, np.repeat(each, counts), pa.array(added, arrow))
    key_type = plan.types[0].arrow
    if act in ("items", "keys"):
        maps = state.get_range(keys).to_pylist()
        return maps if act == "items" else [[key for key, _ in each] for each in maps]
    if act == "range":
        bounds = [bounds_of(plan, *number) for number in numbers]
        return state.get_range(keys, *(pa.array(side, key_type) for side in zip(*bounds, strict=True))).to_pylist()
    counts = [more if act == "put_all" else 1 for _, more in numbers]
    pairs = [
        (key, value(number + n))
        for (number, _), count in zip(numbers, counts, strict=True)
        for n, key in enumerate(map_keys_of(plan, number, count))
    ]
    index, map_keys = np.repeat(each, counts), pa.array([key for key, _ in pairs], key_type)
    if act == "get":
        return state.get_entries(keys, index, map_keys).to_pylist()
    if act == "contains":
        return state.contains_entries(keys, index, map_keys).to_pylist()
    values = pa.nulls(len(pairs), arrow) if act == "remove" else pa.array([value for _, value in pairs], arrow)
    return state.put_entries(keys, index, map_keys, values)


def told_of_timer(name: str, at_us: int, ctx: ckpt.Context) -> str:
    """What a timer that fires tells: of the processor's clock only how far it is from the batch's time."""
    return str(at_us) if name == "due" else str(at_us <= ctx.processing_time_ms * 1000)


def _with_states(base: type, *parts: type, wall: bool) -> Any:  # noqa: ANN401
    states = dict(DECLARED)
    if wall:
        states["wall"] = ckpt.Timers("wall", clock="processing")
    name = f"{base.__name__}{'WithRules' if parts else ''}{'OfBothClocks' if wall else 'OfEvents'}"
    return type(name, (*parts, base), {**states, "__module__": __name__})


KeyedLifeOfEvents = _with_states(KeyedLife, wall=False)
KeyedLifeOfBothClocks = _with_states(KeyedLife, wall=True)
VectorLifeOfEvents = _with_states(VectorLife, wall=False)
VectorLifeOfBothClocks = _with_states(VectorLife, wall=True)
PROGRAMS = (KeyedLifeOfEvents, KeyedLifeOfBothClocks, VectorLifeOfEvents, VectorLifeOfBothClocks)
KeyedLifeWithRulesOfEvents = _with_states(KeyedLife, KeyedRules, wall=False)
KeyedLifeWithRulesOfBothClocks = _with_states(KeyedLife, KeyedRules, wall=True)
VectorLifeWithRulesOfEvents = _with_states(VectorLife, VectorRules, wall=False)
VectorLifeWithRulesOfBothClocks = _with_states(VectorLife, VectorRules, wall=True)
PROGRAMS_WITH_RULES = (
    KeyedLifeWithRulesOfEvents,
    KeyedLifeWithRulesOfBothClocks,
    VectorLifeWithRulesOfEvents,
    VectorLifeWithRulesOfBothClocks,
)
"""The same, and a broadcast state and a list of the partition."""
