"""A task in real-time mode: groups of rows are answered one by one, and the clock moves on within the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import LongType

import pyspark_ckpt as ckpt
from tests.labs.task_lab import Row, TaskLab, at_us

OUTPUT = pa.schema([("user", pa.string()), ("what", pa.string()), ("n", pa.int64())])
NOW_MS = 1_700_000_000_000
MEMORY = 1 << 20


class Visits(ckpt.KeyedProcessor):
    """Counts rows, forgets them after a second, and tells when a user has been away for two."""

    count = ckpt.ValueState("count", LongType(), ttl="1 second")
    away = ckpt.Timers("away", clock="processing")

    def process(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Any]:  # noqa: ANN401
        self.count.update((self.count.value() or 0) + len(rows))
        self.away.register(ctx.processing_time_ms + 2000)
        yield key.user, "rows", self.count.value()

    def on_timer(self, ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Any]:  # noqa: ANN401
        yield key.user, "away", ctx.processing_time_ms - timer.at_ms


def _rows(*users: str) -> list[Row]:
    return [(user, n, at_us(n + 1), "") for n, user in enumerate(users)]


def test_groups_are_answered_one_by_one_while_the_clock_moves_on(tmp_path: Path) -> None:
    lab, now_ms = TaskLab(tmp_path, Visits(), OUTPUT), NOW_MS

    def arrive() -> Iterator[list[Row]]:
        nonlocal now_ms
        for after_ms, rows in (
            (0, _rows("a", "b", "a")),
            (500, _rows("a")),
            (1600, _rows("b")),
            (2499, []),
            (2500, []),
        ):
            now_ms = NOW_MS + after_ms
            yield rows

    with closing(lab):
        found = lab.run_live(arrive(), watermark_ms=0, now_ms=NOW_MS, memory_bytes=MEMORY, read_clock_ms=lambda: now_ms)
        assert [sorted(group) for group in found.groups] == [
            [("a", "rows", 2), ("b", "rows", 1)],
            [("a", "rows", 3)],
            [("b", "rows", 1)],
            [("a", "away", 499), ("b", "away", 499)],
            [("a", "away", 0)],
        ]
        assert found.time_out_ms == NOW_MS + 3600 - 1
        now_ms = NOW_MS + 4000
        later = lab.run_live(
            iter([[]]), watermark_ms=0, now_ms=NOW_MS + 3000, memory_bytes=MEMORY, read_clock_ms=lambda: now_ms
        )
        assert later.groups == [[("b", "away", 400)]]
        assert later.time_out_ms is None


@pytest.mark.parametrize("memory_bytes", [1 << 12, MEMORY])
def test_a_batch_of_many_groups_comes_to_what_one_group_comes_to(memory_bytes: int, tmp_path: Path) -> None:
    users = [f"user {n * n % 101}" for n in range(400)]
    lab = TaskLab(tmp_path, Visits(), OUTPUT)
    with closing(lab):
        groups = (_rows(*users[begin : begin + 7]) for begin in range(0, len(users), 7))
        found = lab.run_live(groups, watermark_ms=0, now_ms=NOW_MS, memory_bytes=memory_bytes)
        last = {user: n for group in found.groups for user, _, n in group}
        assert last == {user: users.count(user) for user in users}
        assert found.stored["it/count"] == len(last)
        again = lab.run(_rows(*sorted(last)), watermark_ms=0, now_ms=NOW_MS, memory_bytes=memory_bytes)
        assert {user: n for user, what, n in again.rows if what == "rows"} == {user: n + 1 for user, n in last.items()}


class Numbers(ckpt.VectorProcessor):
    """Numbers the rows of each user, and keeps each row under its number."""

    count = ckpt.ValueState("count", LongType(), ttl="1 hour")
    kept = ckpt.ValueState("kept", LongType())
    rows = ckpt.MapState("rows", LongType(), LongType())

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        """See the class. A batch has one row of each user."""
        index = ctx.key_index
        number = pc.add(pc.fill_null(self.count.get(ctx.keys), 0), 1)
        assert number.equals(pc.add(pc.fill_null(self.kept.get(ctx.keys), 0), 1))
        self.count.put(ctx.keys, number)
        self.kept.put(ctx.keys, number)
        numbers = number.take(pa.array(index))
        self.rows.put_entries(ctx.keys, index, numbers, batch.column("n").combine_chunks())
        before = self.rows.get_entries(ctx.keys, index, pc.subtract(numbers, 1))
        columns = [batch.column("user"), pa.repeat("", len(index)), pc.fill_null(before, -1)]
        return pa.table(columns, schema=OUTPUT)


@pytest.mark.parametrize("last_users", [[], [300, 2]])
@pytest.mark.parametrize("small_groups", [*range(1, 8), 30])
def test_few_rows_after_many_find_what_those_wrote(small_groups: int, last_users: list[int], tmp_path: Path) -> None:
    """However many small groups there are when the batch ends."""
    all_users = [f"user {n}" for n in range(300)]
    small = (all_users[3 * n : 3 * n + 3] for n in range(small_groups))
    groups = [all_users, *small, *(all_users[:count] for count in last_users)]
    last: dict[str, int] = {}
    stored = 0
    with closing(TaskLab(tmp_path, Numbers(), OUTPUT)) as lab:
        for _ in range(2):
            expected = []
            for users in groups:
                expected.append(sorted((user, "", last.get(user, -1)) for user in users))
                last.update({user: n for n, user in enumerate(users)})
                stored += len(users)
            rows = (_rows(*users) for users in groups)
            found = lab.run_live(rows, watermark_ms=0, now_ms=NOW_MS, memory_bytes=MEMORY)
            assert [sorted(group) for group in found.groups] == expected
            assert (found.stored["it/count"], found.stored["it/rows"]) == (len(all_users), stored)
