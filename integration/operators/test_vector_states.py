"""States of many keys in real queries: a processor for each key, written for all of them, and what has no key."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pyspark_ckpt as ckpt
from integration.operators.keyed import EVENTS, keyed, play
from integration.operators.placement import stored_rows
from integration.operators.providers import OURS
from integration.operators.replay import Case, collect_into, run, write_inputs
from integration.operators.sources import Source
from pyspark_ckpt.reading import open_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

_WAIT = timedelta(minutes=2)
_VISITS = Source(  # each user is away for a while
    EVENTS.schema,
    tuple(
        tuple(row for row in batch if (row[1] or 0) % 4 in (number, number + 1))
        for number, batch in enumerate(EVENTS.batches)
    ),
)
_CARTS = "user int, items array<string>, at timestamp"


class Carts(ckpt.KeyedProcessor):
    """What a user has put into a cart comes out when nothing has been added for a while."""

    items = ckpt.ListState("items", "string")
    counts = ckpt.MapState("counts", "string", "bigint")
    last = ckpt.ValueState("last", "timestamp")
    idle = ckpt.Timers("idle", clock="event")

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> None:  # noqa: ANN401
        if self.last.exists():
            self.idle.delete(self.last.value() + _WAIT)
        self.items.add_all(row.word or "" for row in rows)
        for row in rows:
            self.counts.put(row.word or "", self.counts.get(row.word or "", 0) + 1)
        self.last.update(max(row.at for row in rows))
        self.idle.register(self.last.value() + _WAIT)

    def on_timer(self, _ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        items = list(self.items.get())
        assert Counter(items) == dict(self.counts.items())
        yield key.user, items, timer.at
        for state in (self.items, self.counts, self.last):
            state.clear()


class CartColumns(ckpt.VectorProcessor):
    """The same for all users at once."""

    items = ckpt.ListState("items", "string")
    counts = ckpt.MapState("counts", "string", "bigint")
    last = ckpt.ValueState("last", "timestamp")
    idle = ckpt.Timers("idle", clock="event")

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> None:
        each = np.arange(len(ctx.keys))
        self.idle.delete_rows(ctx.keys, each, pc.add(self.last.get(ctx.keys), pa.scalar(_WAIT)))
        rows = pa.table({"key": ctx.key_index, "word": batch["word"].fill_null(""), "at": batch["at"]})
        self.items.add_rows(ctx.keys, ctx.key_index, rows["word"])
        counts = rows.group_by(["key", "word"]).aggregate([([], "count_all")])
        index, words = counts["key"].to_numpy(), counts["word"].combine_chunks()
        kept = self.counts.get_entries(ctx.keys, index, words).fill_null(0)
        self.counts.put_entries(ctx.keys, index, words, pc.add(counts["count_all"], kept))
        last = rows.group_by("key").aggregate([("at", "max")]).sort_by("key")["at_max"]
        self.last.put(ctx.keys, last)
        self.idle.register_rows(ctx.keys, each, pc.add(last, pa.scalar(_WAIT)))

    def process_timers(self, ctx: ckpt.VectorContext, timers: pa.Table) -> pa.Table:
        places = pa.array(ctx.key_index)
        items = self.items.get_lists(ctx.keys).take(places)
        for state in (self.items, self.counts, self.last):
            state.clear_keys(ctx.keys)
            assert not any(state.exists_keys(ctx.keys).to_pylist())
        return pa.table({"user": ctx.keys.column("user").take(places), "items": items, "at": timers["at"]})


def _later(processor: Any) -> Any:  # noqa: ANN401
    def query(frames: Sequence[DataFrame]) -> DataFrame:
        return keyed(processor, _CARTS, order_by=["at", "id"])([frames[0].withWatermark("at", "5 minutes")])

    return query


def test_a_timer_of_many_keys_empties_their_lists_and_maps(spark: SparkSession, tmp_path: Path) -> None:
    expected = play(spark, _later(Carts()), _VISITS, tmp_path / "one")
    found = play(spark, _later(CartColumns()), _VISITS, tmp_path / "many")
    assert found == expected
    assert sum(map(len, found.values())) > 5
    rows = [
        sorted((row.partition, row.key, row.value) for row in stored_rows(tmp_path / each / "checkpoint"))
        for each in ("one", "many")
    ]
    assert rows[0] == rows[1]


class _OneKey(ckpt.VectorProcessor):
    """Uses its states as if there were a current key."""

    rows = ckpt.ReducingState("rows", "bigint", "sum")
    value = ckpt.ValueState("value", "bigint")
    list = ckpt.ListState("list", "bigint")
    idle = ckpt.Timers("idle", clock="processing")

    def __init__(self, call: Callable[[_OneKey], None]) -> None:
        self.call = call

    def process_batch(self, ctx: ckpt.VectorContext, _batch: pa.Table) -> pa.Table:
        self.rows.add_rows(ctx.keys, ctx.key_index, pa.array(np.ones(len(ctx.key_index), np.int64)))
        if ctx.batch_id == 1:
            self.call(self)
        return pa.table({"user": ctx.keys.column("user"), "rows": self.rows.get_values(ctx.keys)})

    def process_timers(self, _ctx: ckpt.VectorContext, _timers: pa.Table) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("call", "problem", "hint"),
    [
        (lambda each: each.value.update(5), r"ValueState 'value' of keyed operator 'it': update\(\)", "put(keys"),
        (lambda each: each.list.clear(), r"ListState 'list' of keyed operator 'it': clear\(\)", "clear_keys(keys"),
        (lambda each: each.idle.register(1), r"Timers 'idle' of keyed operator 'it': register\(\)", "register_rows("),
    ],
    ids=["value", "list", "timers"],
)
def test_a_call_for_one_key_fails_the_batch_and_nothing_of_it_is_kept(
    call: Any,  # noqa: ANN401
    problem: str,
    hint: str,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    output = "user int, rows bigint"
    broken = Case(keyed(_OneKey(call), output), (EVENTS,), "update")
    write_inputs(broken, tmp_path, 0, 1)
    first: dict[int, Any] = {}
    run(OURS.session(spark), broken, tmp_path, collect_into(first))
    write_inputs(broken, tmp_path, 1, 2)
    with pytest.raises(Exception, match=problem) as refused:
        run(OURS.session(spark), broken, tmp_path, collect_into({}))
    assert hint in str(refused.value)
    checkpoint = str(tmp_path / "checkpoint")
    for name, count in (("rows", len({row[1] for row in EVENTS.batches[0]})), ("value", 0), ("list", 0)):
        with open_state(checkpoint, uid="it", state=name) as state:
            assert state.count() == count
    counted = {row[1]: 0 for batch in EVENTS.batches[:2] for row in batch}
    mended = Case(keyed(_OneKey(lambda _: None), output), (EVENTS,), "update")
    second: dict[int, Any] = {}
    run(OURS.session(spark), mended, tmp_path, collect_into(second))
    for batch in EVENTS.batches[:2]:
        for row in batch:
            counted[row[1]] += 1
    users = {row[1] for row in EVENTS.batches[1]}
    assert list(second[1]) == sorted(f"Row(user={user}, rows={counted[user]})" for user in users)
