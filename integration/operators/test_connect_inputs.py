"""Several inputs of one keyed operator: shared state, the order of inputs, watermarks, restarts, refusals."""

from __future__ import annotations

import random
import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import pyspark_ckpt as ckpt
from integration.operators.providers import OURS
from integration.operators.replay import Case, collect_into, run, write_inputs
from integration.operators.sources import Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from integration.operators.replay import Lines

pytestmark = pytest.mark.spark

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
BATCHES, RESTART = 5, 2
OUTPUT = "user string, what string, amount bigint"


class Match(ckpt.KeyedProcessor):
    """Matches payments with orders of the same user, in the order of their coming; the rest waits."""

    open = ckpt.ListState("open", "bigint")
    timers = ckpt.Timers("due", clock="event")

    def process_orders(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401, ARG002
        for row in rows:
            self.open.add(row.amount)
            self.timers.register(row.at + timedelta(seconds=100))
            yield key.user, "order", row.amount

    def process_payments(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401, ARG002
        waiting = list(self.open.get())
        for row in rows:
            yield key.user, "paid" if row.paid in waiting else "unknown", row.paid
            if row.paid in waiting:
                waiting.remove(row.paid)
        self.open.update(waiting)

    def on_timer(self, ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401, ARG002
        for amount in self.open.get():
            yield key.user, "overdue", amount
        self.open.clear()


class Turns(ckpt.KeyedProcessor):
    """Numbers the calls of each key, and outputs the first amount of each."""

    calls = ckpt.ValueState("calls", "bigint")

    def process_orders(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401, ARG002
        yield key.user, f"order {self._count()}", rows[0].amount

    def process_payments(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401, ARG002
        yield key.user, f"payment {self._count()}", rows[0].paid

    def _count(self) -> int:
        number = (self.calls.value() or 0) + 1
        self.calls.update(number)
        return number


class TurnsOfMany(ckpt.VectorProcessor):
    """The same for many keys at once."""

    calls = ckpt.ValueState("calls", "bigint")

    def process_orders_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        return self._number(ctx, "order", batch.column("amount"))

    def process_payments_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        return self._number(ctx, "payment", batch.column("paid"))

    def _number(self, ctx: ckpt.VectorContext, what: str, amounts: pa.ChunkedArray) -> pa.Table:
        calls = self.calls.get(ctx.keys).fill_null(0).to_numpy(zero_copy_only=False) + 1
        self.calls.put(ctx.keys, pa.array(calls))
        _, first = np.unique(ctx.key_index, return_index=True)
        said = [f"{what} {number}" for number in calls]
        return pa.table({"user": ctx.keys.column("user"), "what": said, "amount": amounts.take(pa.array(first))})


def draw(seed: int) -> tuple[Source, Source]:
    """Orders and payments of the same users, with time that moves on."""
    rng = random.Random(seed)

    def rows(batch: int) -> tuple[tuple[Any, ...], ...]:
        return tuple(
            (f"u{rng.randrange(5)}", START + timedelta(seconds=60 * batch + rng.randrange(60)), rng.randrange(6))
            for _ in range(rng.randrange(12))
        )

    orders = tuple(rows(batch) for batch in range(BATCHES))
    payments = tuple(tuple((n, user, at) for user, at, n in rows(batch)) for batch in range(BATCHES))
    return Source("user string, at timestamp, amount bigint", orders), Source(
        "paid bigint, payer string, paid_at timestamp", payments
    )


def connected(processor: Any, *, merge: bool = False) -> Any:  # noqa: ANN401
    def query(frames: Sequence[DataFrame]) -> DataFrame:
        orders, payments = frames
        if not merge:
            orders, payments = orders.withWatermark("at", "0 seconds"), payments.withWatermark("paid_at", "5 seconds")
        return ckpt.keyed_inputs(
            uid="match",
            merge=merge,
            orders=ckpt.KeyedInput(orders, by="user", order_by=("at", "amount")),
            payments=ckpt.KeyedInput(payments, by="payer", order_by=("paid_at", "paid")),
        ).process(processor, OUTPUT)

    return query


def play(spark: SparkSession, query: Any, sources: tuple[Source, ...], folder: Path) -> Mapping[int, Lines]:  # noqa: ANN401
    """Run all batches, with a restart in the middle; the rows of every batch."""
    batches: dict[int, Lines] = {}
    case, session = Case(query, sources, output_mode="update"), OURS.session(spark)
    for first, last in ((0, RESTART), (RESTART, BATCHES)):
        write_inputs(case, folder, first, last)
        run(session, case, folder, collect_into(batches))
    return batches


def model(sources: tuple[Source, Source]) -> list[tuple[Any, ...]]:
    """What Match must output, computed in plain Python."""
    waiting: dict[str, list[int]] = {}
    timers: set[tuple[datetime, str]] = set()
    newest = [EPOCH, EPOCH]
    late = mark = EPOCH
    found: list[tuple[Any, ...]] = []

    def fire() -> None:
        for at, user in sorted(each for each in timers if each[0] <= mark):
            timers.discard((at, user))
            found.extend((user, "overdue", amount) for amount in waiting.pop(user, []))

    for number, (orders, payments) in enumerate(zip(*(source.batches for source in sources), strict=True)):
        for user, at, amount in sorted(orders):
            if at > late:
                waiting.setdefault(user, []).append(amount)
                timers.add((at + timedelta(seconds=100), user))
                found.append((user, "order", amount))
        for user, at, paid in sorted((user, at, paid) for paid, user, at in payments):
            if at > late:
                is_open = paid in waiting.get(user, [])
                found.append((user, "paid" if is_open else "unknown", paid))
                if is_open:
                    waiting[user].remove(paid)
        fire()
        newest[0] = max([newest[0], *(at for _, at, _ in orders)])
        newest[1] = max([newest[1], *(at for _, _, at in payments)])
        late, mark = mark, max(mark, min(newest[0], newest[1] - timedelta(seconds=5)))
        if number in (RESTART - 1, BATCHES - 1):  # a run ends: a batch without rows follows
            late = mark
            fire()
    return found


@pytest.mark.parametrize("seed", range(3))
def test_two_inputs_share_states_and_timers(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    sources = draw(seed)
    batches = play(spark, connected(Match()), sources, tmp_path)
    assert sorted(row for rows in batches.values() for row in rows) == as_lines(model(sources))


@pytest.mark.parametrize("processor", [Turns(), TurnsOfMany()])
def test_rows_of_both_inputs_come_in_one_order(processor: Any, spark: SparkSession, tmp_path: Path) -> None:  # noqa: ANN401
    sources = draw(4)
    calls: dict[str, int] = {}
    expected: list[tuple[Any, ...]] = []
    for orders, payments in zip(*(source.batches for source in sources), strict=True):
        rows = [(user, at, amount, "order") for user, at, amount in orders]
        rows += [(user, at, paid, "payment") for paid, user, at in payments]
        last: tuple[str, str] | None = None
        for user, _, amount, what in sorted(rows, key=lambda row: (*row[:3], row[3] == "payment")):
            if (user, what) != last:
                calls[user] = calls.get(user, 0) + 1
                expected.append((user, f"{what} {calls[user]}", amount))
            last = user, what
    batches = play(spark, connected(processor, merge=True), sources, tmp_path)
    assert sorted(row for rows in batches.values() for row in rows) == as_lines(expected)


def as_lines(rows: list[tuple[Any, ...]]) -> list[str]:
    """Rows of the output as they are collected."""
    return sorted(f"Row(user={user!r}, what={what!r}, amount={amount})" for user, what, amount in rows)


def _orders(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load().selectExpr("'u' user", "timestamp at", "value amount")


def _payments(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load().selectExpr("'u' payer", "timestamp paid_at", "value paid")


class Half(ckpt.KeyedProcessor):
    """Lacks a method: the name of one is misspelt."""

    def process_orders(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> None:  # noqa: ANN401
        """No rows."""

    def process_payment(self, ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> None:  # noqa: ANN401
        """No rows."""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"payments": "paid"}, r"input 'payments' is 'paid', of type str\.\n.*payments=ckpt\.KeyedInput\(frame, by="),
        ({"late": ("payments", "payer")}, "'late' cannot be the name of an input"),
        ({"payments_batch": ("payments", "payer")}, "'payments_batch' cannot be the name of an input"),
        ({"payments": ("payments", "pay")}, r"input 'payments': there are no columns \['pay'\] to key by"),
        ({"payments": ("payments", "paid")}, r"keyed by \['paid'\] of type bigint, and input 'orders' by \['user'\]"),
        ({"payments": ("payments", ("payer", "paid"))}, "of type string, bigint, and input 'orders'"),
        ({"payments": ("payments", "payer"), "merge": True}, "merge=True needs an order_by of the same types"),
        ({"payments": ("batch", "payer")}, r"input 'payments' is not a stream\.\n.*initial_state"),
        (
            {"payments": ("payments", "payer")},
            r"Half has no process_payments\(\) for the input 'payments'.*process_payment'",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(change: dict[str, Any], message: str, spark: SparkSession) -> None:
    frames = {
        "payments": _payments(OURS.session(spark)),
        "batch": spark.createDataFrame([("u",)], "payer string"),
    }
    inputs: dict[str, Any] = {
        name: ckpt.KeyedInput(frames[given[0]], given[1]) if isinstance(given, tuple) else given
        for name, given in change.items()
    }
    orders, processor = ckpt.KeyedInput(_orders(OURS.session(spark)), by="user"), Half()
    with pytest.raises(ckpt.InvalidInputError) as refused:
        ckpt.keyed_inputs(uid="match", orders=orders, **inputs).process(processor, OUTPUT)
    assert re.search(message, f"{refused.value.message}\n{refused.value.hint}", re.DOTALL)
    assert "keyed_inputs(uid='match')" in refused.value.message or "Half" in refused.value.message
