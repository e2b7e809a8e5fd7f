"""Batches of a harness as in real-time mode: rows come in groups, and processing time moves on between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql.types import LongType

import pyspark_ckpt as ckpt
from pyspark_ckpt import testing

pytestmark = pytest.mark.usefixtures("quick_path")

ROWS, OUTPUT = "user string, n bigint", "user string, what string, n bigint"


class Visits(ckpt.KeyedProcessor):
    """Counts rows, and tells how many have come in the first two seconds."""

    count = ckpt.ValueState("count", LongType(), default=0)
    away = ckpt.Timers("away", clock="processing")

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        self.count.update(self.count.value() + len(rows))
        if self.count.value() == len(rows):
            self.away.register(ctx.processing_time_ms + 2000)
        yield key.user, "rows", self.count.value()

    def on_timer(self, _ctx: ckpt.Context, key: Any, _timer: ckpt.Timer) -> Iterator[Any]:  # noqa: ANN401
        yield key.user, "away", self.count.value()


class Calls(ckpt.KeyedProcessor):
    """Counts its calls, of which there are as many as groups."""

    calls = ckpt.ValueState("calls", LongType(), default=0)

    def process(self, _ctx: ckpt.Context, key: Any, _rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        self.calls.update(self.calls.value() + 1)
        yield key.user, "calls", self.calls.value()


class Sums(ckpt.KeyedProcessor):
    """Adds the numbers of two inputs, times the newest factor."""

    total = ckpt.ValueState("total", LongType(), default=0)
    factors = ckpt.BroadcastState("factors", "string", "bigint")

    def process_broadcast(self, _ctx: ckpt.Context, rows: Sequence[Any]) -> None:
        for row in rows:
            self.factors.put("it", row.n)

    def process_left(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        self.total.update(self.total.value() + self.factors.get("it", 1) * sum(row.n for row in rows))
        yield key.user, "total", self.total.value()

    process_right = process_left


def test_timers_fire_within_the_batch() -> None:
    with testing.keyed(ROWS, "user").process(Visits(), OUTPUT) as harness:
        begin = harness.processing_time
        found = harness.run_live(
            [("a", 1), ("b", 2)],
            timedelta(seconds=1),
            [("a", 3)],
            timedelta(milliseconds=999),
            timedelta(milliseconds=1),
        )
        assert sorted(found[:2]) == [("a", "rows", 1), ("b", "rows", 1)]
        assert found[2:3] == [("a", "rows", 2)]
        assert sorted(found[3:]) == [("a", "away", 2), ("b", "away", 1)]
        assert harness.processing_time == begin + timedelta(seconds=2)
        assert harness.run_live(timedelta(seconds=1)) == []
        assert harness.run_live() == []
        assert harness.run([("a", 1)]) == [("a", "rows", 3)]
        assert harness.metrics["fired_timers"] == 0


def test_a_batch_that_fails_leaves_the_clock_and_the_state() -> None:
    with testing.keyed(ROWS, "user").process(Visits(), OUTPUT) as harness:
        before = harness.processing_time
        with pytest.raises(ckpt.InvalidInputError):
            harness.run_live([("a", 1)], timedelta(seconds=1), [("a", "no number")])
        assert harness.processing_time == before
        assert harness.state("count") == {}


def test_groups_have_rows_of_several_inputs_and_rules() -> None:
    given, rules = testing.InputColumns(ROWS, "user"), testing.BroadcastColumns("n bigint")
    stream = testing.keyed_inputs(broadcast=rules, left=given, right=given)
    with stream.process(Sums(), OUTPUT) as harness:
        found = harness.run_live(
            {"left": [("a", 1)], "right": [("a", 10)]}, {"broadcast": [(3,)], "left": [("a", 2)]}, {"right": [("a", 1)]}
        )
        assert [n for *_, n in found] == [1, 11, 17, 20]


def test_a_program_that_counts_its_calls_is_found() -> None:
    rows = [("a", n) for n in range(4)]

    def start() -> testing.Harness:
        return testing.keyed(ROWS, "user").process(Calls(), OUTPUT)

    with pytest.raises(AssertionError, match="depends on the batches"):
        testing.check_cuts(start, rows, real_time=True)


def test_a_program_that_does_not_care_passes() -> None:
    rows = [(user, n) for n in range(6) for user in "abc"]

    def start() -> testing.Harness:
        return testing.keyed(ROWS, "user").process(Visits(), OUTPUT)

    testing.check_cuts(start, rows, real_time=True, cuts=3, result=lambda found: max(n for *_, n in found))


class Counts(ckpt.KeyedProcessor):
    """Counts the rows of one or of two inputs."""

    count = ckpt.ValueState("count", LongType(), default=0)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        self.count.update(self.count.value() + len(rows))
        yield key.user, "rows", self.count.value()

    process_left = process_right = process


LARGE, LOW_MEMORY = "user string, text string", {"spark.sql.streaming.stateStore.ckpt.workerMemory": "1048576"}


def _large(count: int) -> list[tuple[str, str]]:
    return [(f"user {n % 7}", "w" * 20_000) for n in range(count)]


@pytest.mark.parametrize("groups", [1, 3])
def test_groups_beyond_the_memory_of_a_worker_are_processed_whole(groups: int) -> None:
    rows = _large(150)
    with testing.keyed(LARGE, "user", conf=LOW_MEMORY).process(Counts(), OUTPUT) as harness:
        found = harness.run_live(*[rows] * groups)
        assert len(found) == 7 * groups
        counted = {key: n for (key,), n in harness.state("count").items()}
    assert counted == {user: groups * sum(each == user for each, _ in rows) for user in {user for user, _ in rows}}


def test_inputs_that_are_beyond_the_memory_of_a_worker_together_are_processed_whole() -> None:
    given = testing.InputColumns(LARGE, "user")
    stream = testing.keyed_inputs(conf=LOW_MEMORY, left=given, right=given)
    with stream.process(Counts(), OUTPUT) as harness:
        harness.run_live({"left": _large(40), "right": _large(35)}, {"left": _large(40), "right": _large(35)})
        assert sum(harness.state("count").values()) == 150


class Changed(ckpt.KeyedProcessor):
    """Changes a row, which is none of its key's business."""

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        rows[0].k.append(9)
        yield list(key.k), len(rows)


@pytest.mark.parametrize("count", [2, 65])
def test_a_key_does_not_change_with_the_rows(count: int) -> None:
    with testing.keyed("k array<int>, n bigint", "k").process(Changed(), "k array<int>, n bigint") as harness:
        assert harness.run([([1], n) for n in range(count)]) == [([1], count)]


def test_order_by_is_refused() -> None:
    stream = testing.keyed(ROWS, "user", order_by="n")
    with (
        stream.process(Visits(), OUTPUT) as harness,
        pytest.raises(ckpt.InvalidInputError, match="has order_by, but in real-time mode"),
    ):
        harness.run_live([("a", 1)])
