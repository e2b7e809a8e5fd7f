"""Whole tasks, with memory for everything or for nothing: timers, rows and states come to what a model says."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType

from pyspark_ckpt.operators import (
    Context,
    KeyedProcessor,
    ListState,
    Timer,
    Timers,
    ValueState,
    VectorContext,
    VectorProcessor,
)
from tests.labs.task_lab import TaskLab, at_us, hash_of_user

OUTPUT = pa.schema([("user", pa.string()), ("what", pa.string()), ("at_us", pa.int64()), ("seen", pa.int64())])
USERS = [f"user {n}" for n in range(9)]
FEW, ENOUGH = 1, 1 << 30
MS = 1000


def _given(micros: int) -> Any:  # noqa: ANN401
    return at_us(micros) if micros % MS else micros // MS


class Commands(KeyedProcessor):
    """Does what rows say: ``n`` is when, in microseconds."""

    near = Timers("near", clock="event")
    far = Timers("far", clock="event")
    wall = Timers("wall", clock="processing")
    seen = ValueState("seen", LongType(), default=0)
    texts = ListState("texts", StringType())

    def process(self, _ctx: Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        for row in rows:
            name, call, namespace = row.text.split("|")[:3]
            timers = getattr(self, name)
            getattr(timers, call)(_given(row.n), namespace)
            self.seen.update(self.seen.value() + 1)
            self.texts.add(row.text)
        yield key.user, "rows", None, self.seen.value()

    def on_timer(self, _ctx: Context, key: Any, timer: Timer) -> Iterator[Any]:  # noqa: ANN401
        self.seen.update(self.seen.value() + MS)
        if timer.namespace == "twice":
            self.near.register(_given(timer.at_us + 1), "again")
            self.far.register(_given(timer.at_us + 3 * MS), "later")
        if timer.namespace == "again":
            self.near.delete(_given(timer.at_us + 500), "gone")
        yield key.user, f"{timer.name} {timer.namespace}", timer.at_us, self.seen.value()


def model(pending: set[Any], seen: dict[str, int], rows: Sequence[Any], now: dict[str, int]) -> list[Any]:
    """What a batch puts out; ``pending``: (user, timers, when, namespace)."""
    out = []
    for user in sorted({row[0] for row in rows}):
        for _, at, _, text in sorted((row for row in rows if row[0] == user), key=lambda row: row[1]):
            name, call, namespace = text.split("|")[:3]
            (pending.add if call == "register" else pending.discard)((user, name, at, namespace))
            seen[user] = seen.get(user, 0) + 1
        out.append((user, "rows", None, seen[user]))
    for user in sorted({each[0] for each in pending}):
        while due := [each for each in pending if each[0] == user and each[2] <= MS * now[each[1]]]:
            # Those of event time come first. Of one instant, the stored rows tell: they end in namespace and hash.
            end = hash_of_user(user)
            timer = min(due, key=lambda each: (each[1] == "wall", each[2], each[3].encode() + end, each[1]))
            pending.remove(timer)
            _, name, at, namespace = timer
            seen[user] = seen.get(user, 0) + MS
            if namespace == "twice":
                pending |= {(user, "near", at + 1, "again"), (user, "far", at + 3 * MS, "later")}
            if namespace == "again":
                pending.discard((user, "near", at + 500, "gone"))
            out.append((user, f"{name} {namespace}", at, seen[user]))
    return out


_rows = st.tuples(
    st.sampled_from(USERS),
    st.builds(lambda ms, us: MS * ms + us, st.integers(1, 14), st.sampled_from([0, 1, 499, 500, 999])),
    st.sampled_from(["near", "far", "wall"]),
    st.sampled_from(["register", "register", "register", "delete"]),
    st.sampled_from(["", "twice", "gone", "n\0s"]),
)
_batches = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from([1500, ENOUGH]), st.lists(_rows, max_size=14)),
    min_size=1,
    max_size=6,
)


@pytest.mark.in_turn
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_batches)
def test_tasks_come_to_what_a_model_says_however_little_memory_they_have(batches: Any) -> None:  # noqa: ANN401
    with tempfile.TemporaryDirectory() as folder:
        lab = TaskLab(Path(folder), Commands(), OUTPUT)
        pending: set[Any] = set()
        seen: dict[str, int] = {}
        texts = 0
        now = {"near": 0, "far": 0, "wall": 100}
        for event_step, wall_step, memory_bytes, given_rows in batches:
            now = {"near": now["near"] + event_step, "far": now["far"] + event_step, "wall": now["wall"] + wall_step}
            # Two commands of one instant would come in any order.
            at_once = {(user, at): (user, at, name, call, spaced) for user, at, name, call, spaced in given_rows}
            rows = [
                (user, at + 100 * MS * (name == "wall"), at_us(1_000 * MS), f"{name}|{call}|{spaced}|{'x' * 500}")
                for user, at, name, call, spaced in at_once.values()
            ]
            batch = lab.run(rows, watermark_ms=now["near"], now_ms=now["wall"], memory_bytes=memory_bytes)
            expected = model(pending, seen, rows, now)
            texts += len(rows)
            assert sorted(map(repr, batch.rows)) == sorted(map(repr, expected))
            waiting = {name: sum(each[1] == name for each in pending) for name in ("near", "far", "wall")}
            assert {name: batch.stored[f"it/{name}"] for name in waiting} == waiting
            assert batch.stored["it/texts"] == texts + len({user for user in seen if seen[user] % MS})
        lab.close()


class Relays(VectorProcessor):
    """Each timer that fires sets the next one, a microsecond later, until there were so many."""

    relay = Timers("relay", clock="event")
    left = ValueState("left", LongType())

    def process_batch(self, ctx: VectorContext, batch: pa.Table) -> None:
        each = np.arange(len(ctx.keys))
        self.relay.register_rows(ctx.keys, ctx.key_index, batch["at"])
        self.left.put(ctx.keys, pa.array([5] * len(each), pa.int64()))

    def process_timers(self, ctx: VectorContext, timers: pa.Table) -> pa.Table:
        left = pc.subtract(self.left.get(ctx.keys), 1)
        self.left.put(ctx.keys, left)
        of_timer = left.take(pa.array(ctx.key_index))
        goes_on = pc.greater(of_timer, 0).to_numpy(zero_copy_only=False)
        at = timers["at"].combine_chunks()
        self.relay.register_rows(
            ctx.keys, ctx.key_index[goes_on], pc.add(at.cast(pa.int64()), 1).cast(at.type).filter(pa.array(goes_on))
        )
        users = ctx.keys.column("user").take(pa.array(ctx.key_index))
        what = pa.array(["relay"] * len(timers))
        return pa.table({"user": users, "what": what, "at_us": at.cast(pa.int64()), "seen": of_timer})


@pytest.mark.parametrize("memory_bytes", [FEW, ENOUGH])
def test_timers_that_many_at_once_set_while_they_fire_fire_in_the_same_batch(memory_bytes: int, tmp_path: Path) -> None:
    lab = TaskLab(tmp_path, Relays(), OUTPUT)
    rows = [(user, 0, at_us(1_500), "") for user in USERS]
    batch = lab.run(rows, watermark_ms=0, now_ms=0, memory_bytes=memory_bytes)
    assert (batch.rows, batch.time_out_ms, batch.stored["it/relay"]) == ([], 1, len(USERS))
    batch = lab.run([], watermark_ms=2, now_ms=0, memory_bytes=memory_bytes)
    assert sorted(batch.rows) == [(user, "relay", 1_500 + n, 4 - n) for user in USERS for n in range(5)]
    assert (batch.time_out_ms, batch.stored["it/relay"]) == (None, 0)
    lab.close()


@pytest.mark.parametrize("memory_bytes", [FEW, ENOUGH])
def test_a_timer_does_not_fire_before_its_microsecond(memory_bytes: int, tmp_path: Path) -> None:
    lab = TaskLab(tmp_path, Commands(), OUTPUT)
    rows = [("a", at, at_us(at), "near|register|") for at in (2_000, 2_001, 2_999, 3_000)]
    lab.run(rows, watermark_ms=0, now_ms=0, memory_bytes=memory_bytes)
    fired = [
        [row[2] for row in lab.run([], watermark_ms=now, now_ms=0, memory_bytes=memory_bytes).rows] for now in (1, 2, 3)
    ]
    assert fired == [[], [2_000], [2_001, 2_999, 3_000]]
    lab.close()


class Far(KeyedProcessor):
    """Has timers of its own, and none of those of Commands but ``far``."""

    far = Timers("far", clock="event")
    wall = Timers("wall", clock="processing")

    def process(self, _ctx: Context, _key: Any, rows: Sequence[Any]) -> None:  # noqa: ANN401
        for row in rows:
            self.far.register(row.n // MS)

    def on_timer(self, _ctx: Context, key: Any, timer: Timer) -> Iterator[Any]:  # noqa: ANN401
        yield key.user, f"{timer.name} {timer.namespace}", timer.at_us, 0


class OnlyWall(Far):
    """Has only timers of the other clock."""

    far = None  # type: ignore[assignment]

    def process(self, _ctx: Context, _key: Any, _rows: Sequence[Any]) -> None:  # noqa: ANN401
        """Registers nothing."""


@pytest.mark.parametrize("meanwhile", [Far, OnlyWall])
def test_timers_that_a_program_leaves_alone_fire_when_another_declares_them_again(
    meanwhile: type[KeyedProcessor], tmp_path: Path
) -> None:
    lab = TaskLab(tmp_path, Commands(), OUTPUT)

    def fired(at_ms: int, *rows: Any) -> list[Any]:  # noqa: ANN401
        batch = lab.run(rows, watermark_ms=at_ms, now_ms=at_ms, memory_bytes=ENOUGH)
        return sorted((row[1], row[2]) for row in batch.rows if row[2] is not None)

    def row(n: int, text: str) -> Any:  # noqa: ANN401
        return USERS[0], n, at_us(10**9), text

    set_before = [
        row(5000 * MS + 7, "near|register|"),
        row(8000 * MS, "wall|register|"),
        row(40_000 * MS, "near|register|"),
    ]
    assert fired(1000, *set_before) == []
    lab.change(meanwhile())
    for at_ms in (9000, 20_000):
        far, wall = [("far ", (at_ms - 1) * MS)] * (meanwhile is Far), [("wall ", 8000 * MS)] * (at_ms == 9000)
        assert fired(at_ms, row((at_ms - 1) * MS, "")) == far + wall
    lab.change(Commands())
    assert fired(21_000, row(10**9, "far|delete|")) == [("near ", 5000 * MS + 7)]
    assert fired(39_999, row(10**9, "far|delete|")) == []
    assert fired(40_000) == [("near ", 40_000 * MS)]
    lab.close()
