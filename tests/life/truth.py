"""What the program must tell, by plain dicts."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyspark_ckpt as ckpt
from tests.life.program import AGAIN_US, acts_of_timer, bounds_of, fires_again, is_read, map_keys_of
from tests.life.rules import apply_rules
from tests.life.states import PLANS, Plan, added_value, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.life.course import Course
    from tests.life.program import Act
    from tests.life.rules import Rule

Key = tuple[str, int]
Line = tuple[str, int, str, str]

_BATCH_MS = 10_000
"""Between the batches of the processor's clock: what it says does not matter, only that it goes on."""


@dataclass
class _Row:
    """A value, and when its life began: None if the clock did not run then."""

    value: Any
    stamp: int | None


@dataclass
class Truth:
    """All states and timers of all keys. ``course``: whose program it is of."""

    course: Course
    lists: dict[tuple[str, Key], list[_Row]] = field(default_factory=lambda: defaultdict(list))
    """Of a list state its elements; of others one row or none."""
    maps: dict[tuple[str, Key], dict[Any, _Row]] = field(default_factory=lambda: defaultdict(dict))
    timers: dict[str, set[tuple[int, Key, str]]] = field(default_factory=lambda: {"due": set(), "wall": set()})
    mark_ms: int = 0
    batch: int = 0
    passed_ms: int = 0
    """The watermark of the batch before."""
    reads_ms: int = 0
    writes_ms: int = 0
    """The event times of the call, of reads and of writes."""
    rules: dict[int, int] = field(default_factory=dict)
    given: list[int] = field(default_factory=list)
    """What the lists of all partitions have together."""

    def process(
        self, batch: int, mark_ms: int, rows: Sequence[Sequence[Any]], rules: Sequence[Rule] | None = None
    ) -> list[Line]:
        """What a batch of these rows tells when the watermark is ``mark_ms``. ``rules``: None without a broadcast."""
        self.batch, self.passed_ms, self.mark_ms = batch, self.mark_ms, mark_ms
        told: list[Line] = []
        apply_rules(self.rules, rules or ())
        if mark_ms:
            self._begin_lives()
        times = self._times(rows)
        for k, w, seq, _, acts, load in sorted(rows, key=lambda row: row[2]):
            self.reads_ms, self.writes_ms = times[seq]
            for place, act in enumerate(json.loads(acts)):
                if act[0] in ("due", "wall"):
                    self._set_timer((k, w), *act)
                else:
                    told += self._told((k, w), f"{seq}.{place}", act)
            told.append((k, w, f"{seq} load", shown(load)))
            if rules is not None:
                told += self._tell_rules(k, w, seq)
        for clock, now_ms in (("due", mark_ms), ("wall", batch * _BATCH_MS)):
            told += self._fire(clock, now_ms)
        return told

    def _tell_rules(self, k: str, w: int, seq: int) -> list[Line]:
        self.given.append(seq)
        rules = self.rules
        told = [(k, w, f"{seq} rules", shown(sorted(rules.items())))]
        if seq % 7 == 0:
            told.append((k, w, f"{seq} rule", shown((rules.get(seq % 6, -1), seq % 5 in rules, not rules))))
        return told

    def _fire(self, clock: str, now_ms: int) -> list[Line]:
        told: list[Line] = []
        due = sorted(each for each in self.timers[clock] if each[0] <= now_ms * 1000)
        times = self._times_of_timers()
        for timer in due:
            self.timers[clock].discard(timer)
            at_us, key, namespace = timer
            self.reads_ms, self.writes_ms = times[clock, timer]
            what = f"{clock} {namespace}"
            told.append((*key, what, str(at_us) if clock == "due" else "True"))
            for place, act in enumerate(acts_of_timer(namespace)):
                told += self._told(key, f"{what}.{place}", act)
            again = fires_again(namespace)
            if again and clock == "due":
                self.timers[clock].add((at_us + AGAIN_US, key, again))
        return told

    @property
    def _is_vector(self) -> bool:
        return issubclass(self.course.program, ckpt.VectorProcessor)

    def _times(self, rows: Sequence[Sequence[Any]]) -> dict[int, tuple[int, int]]:
        """When each row reads and writes. Many keys at once do so once for all rows of a key that come in one call."""
        side_of = {
            row[2]: side for side, some in enumerate(self.course.split([tuple(row) for row in rows])) for row in some
        }
        of_calls: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        last: dict[Key, tuple[int, int, int]] = {}
        for k, w, seq, at, *_ in sorted(rows, key=lambda row: row[2]):
            known_ms, side, number = last.get((k, w), (self.mark_ms, side_of[seq], 0))
            number += side != side_of[seq]
            at_ms = max(known_ms, int(at.timestamp() * 1000))
            last[k, w] = at_ms, side_of[seq], number
            of_calls[(k, w, number) if self._is_vector else seq].append((seq, at_ms))
        return {seq: (call[0][1], call[-1][1]) for call in of_calls.values() for seq, _ in call}

    def _times_of_timers(self) -> dict[tuple[str, tuple[int, Key, str]], tuple[int, int]]:
        """When each timer that is due reads and writes."""
        of_calls: dict[Any, list[tuple[Any, int]]] = defaultdict(list)
        for clock, now_ms in (("due", self.mark_ms), ("wall", self.batch * _BATCH_MS)):
            for timer in sorted(each for each in self.timers[clock] if each[0] <= now_ms * 1000):
                at_ms = max(self.passed_ms, timer[0] // 1000) if clock == "due" else self.mark_ms
                call = timer[1] if self._is_vector else (clock, timer)
                of_calls[call].append(((clock, timer), at_ms))
        return {
            each: (min(at_ms for _, at_ms in call), max(at_ms for _, at_ms in call))
            for call in of_calls.values()
            for each, _ in call
        }

    def _set_timer(self, key: Key, clock: str, verb: str, at_us: int, namespace: str) -> None:
        timer = (at_us + (self.batch * _BATCH_MS * 1000 if clock == "wall" else 0), key, namespace)
        if verb != "delete":
            self.timers[clock].add(timer)
        if verb != "register":
            self.timers[clock].discard(timer)

    def _begin_lives(self) -> None:
        """Rows that were written before there was a watermark live from now on."""
        rows = [row for each in self.lists.values() for row in each]
        rows += [row for each in self.maps.values() for row in each.values()]
        for row in rows:
            row.stamp = self.mark_ms if row.stamp is None else row.stamp

    def _new(self, plan: Plan, value: Any, before: _Row | None = None) -> _Row:  # noqa: ANN401
        """A row that is written now; ``before``: what it replaces, whose life it does not shorten."""
        if plan.ttl is None or plan.ttl.clock != "event":
            return _Row(value, self.batch * _BATCH_MS)
        stamps = [self.writes_ms, 0 if before is None else before.stamp or 0]
        return _Row(value, max(stamps) or None)

    def _lives(self, plan: Plan, row: _Row) -> bool:
        if plan.ttl is None or row.stamp is None:
            return True
        now = self.reads_ms if plan.ttl.clock == "event" else self.batch * _BATCH_MS
        return now - row.stamp < plan.ttl.duration_ms

    def _read(self, plan: Plan, row: _Row) -> Any:  # noqa: ANN401
        """The value of a row, whose life a read may begin anew."""
        if plan.ttl is not None and plan.ttl.refresh == "on_read_and_write":
            row.stamp = self._new(plan, row.value, row).stamp
        return row.value

    def _told(self, key: Key, what: str, act: Act) -> list[Line]:
        name, verb, number, more = act
        plan = PLANS[name]
        do = self._do_map if plan.kind == "map" else self._do_list if plan.kind == "list" else self._do_one
        found = do(plan, (name, key), verb, number, more)
        return [(*key, f"{what} {name} {verb}", shown(found))] if is_read(verb) else []

    def _alive(self, plan: Plan, place: tuple[str, Key]) -> list[_Row]:
        """What a read finds. The rest may be found by a call that is for an earlier time."""
        return [row for row in self.lists[place] if self._lives(plan, row)]

    def _do_one(self, plan: Plan, place: tuple[str, Key], verb: str, number: int, _more: int) -> Any:  # noqa: ANN401
        rows = self._alive(plan, place)
        if verb == "exists":
            return bool(rows)
        if verb == "get":
            found = self._read(plan, rows[0]) if rows else None
            return plan.how[2](found) if plan.kind == "aggregating" and rows else found
        if verb == "clear":
            self.lists[place].clear()
            return None
        value = added_value(plan, number)
        if plan.kind == "reducing" and rows:
            value = rows[0].value + value if plan.how == "sum" else plan.how(rows[0].value, value)
        if plan.kind == "aggregating":
            create, add, _ = plan.how
            value = add(rows[0].value if rows else create(), value)
        self.lists[place] = [self._new(plan, value, *self.lists[place])]
        return None

    def _do_list(self, plan: Plan, place: tuple[str, Key], verb: str, number: int, more: int) -> Any:  # noqa: ANN401
        rows = self._alive(plan, place)
        if verb == "exists":
            return bool(rows)
        if verb == "get":
            return [self._read(plan, row) for row in rows]
        kept = self.lists[place]
        if verb in ("clear", "put"):
            kept.clear()
        if verb != "clear":
            kept += [self._new(plan, plan.type.value(number + n)) for n in range(1 if verb == "add" else more)]
        return None

    def _do_map(self, plan: Plan, place: tuple[str, Key], verb: str, number: int, more: int) -> Any:  # noqa: ANN401
        kept = self.maps[place]
        entries = {key: row for key, row in sorted(kept.items()) if self._lives(plan, row)}
        keys = map_keys_of(plan, number, more if verb == "put_all" else 1)
        if verb == "exists":
            return bool(entries)
        if verb == "contains":
            return keys[0] in entries and self._read(plan, entries[keys[0]]) is not None
        if verb == "get":
            return self._read(plan, entries[keys[0]]) if keys[0] in entries else None
        if verb == "keys":
            return list(entries)
        if verb in ("items", "range"):
            begin, end = bounds_of(plan, number, more) if verb == "range" else (None, None)
            inside = [key for key in entries if (begin is None or key >= begin) and (end is None or key < end)]
            return [(key, self._read(plan, entries[key])) for key in inside]
        if verb == "clear":
            kept.clear()
        elif verb == "remove":
            kept.pop(keys[0], None)
        else:
            for n, key in enumerate(keys):
                kept[key] = self._new(plan, plan.type.value(number + n), kept.get(key))
        return None
