"""Programs that the tests of the harness run, and rows for them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa

import pyspark_ckpt as ckpt
from pyspark_ckpt import testing
from pyspark_ckpt.operators.keyed import KeyedStream

AT = datetime(2024, 3, 1, 12, 0, tzinfo=timezone.utc)
COLUMNS = "user string, n bigint, at timestamp"
OUTPUT = "user string, total bigint"
ROWS = [("ada", 1, AT), ("bob", 5, AT), ("ada", 2, AT)]


def after(minutes: float) -> datetime:
    """An instant so many minutes after AT."""
    return AT + timedelta(minutes=minutes)


def stream(**more: Any) -> KeyedStream[testing.Harness]:  # noqa: ANN401
    """Rows by user."""
    return testing.keyed(COLUMNS, by="user", **more)


class Totals(ckpt.KeyedProcessor):
    """A total by user, all rows, the rows by number, and a counter."""

    total = ckpt.ValueState("total", "bigint", default=0)
    log = ckpt.ListState("log", "bigint")
    times = ckpt.MapState("times", "bigint", "timestamp")
    seen = ckpt.MetricCounter("seen")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        """Outputs the total."""
        for row in rows:
            self.total.update(self.total.value() + row.n)
            self.log.add(row.n)
            self.times.put(row.n, row.at)
            self.seen.add()
        yield key.user, self.total.value()


class VectorTotals(ckpt.VectorProcessor):
    """The total by user, in columns."""

    total = ckpt.ValueState("total", "bigint")

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        """Outputs the total."""
        sums = batch.select(["user", "n"]).group_by("user").aggregate([("n", "sum")])
        added = dict(zip(sums["user"].to_pylist(), sums["n_sum"].to_pylist(), strict=True))
        users = ctx.keys.column("user").to_pylist()
        before = self.total.get(ctx.keys).to_pylist()
        after = [(old or 0) + added[user] for old, user in zip(before, users, strict=True)]
        self.total.put(ctx.keys, pa.array(after, pa.int64()))
        return pa.table({"user": users, "total": after})


class Sessions(ckpt.KeyedProcessor):
    """Outputs the number of rows of a user when the user has been silent for 10 minutes, if timers alone decide."""

    rows = ckpt.ListState("rows", "timestamp")
    ends = ckpt.Timers("ends", clock="event")

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Any) -> None:  # noqa: ANN401
        """Remembers each row, and asks to be called 10 minutes after it."""
        for row in rows:
            self.rows.add(row.at)
            self.ends.register(row.at + timedelta(minutes=10))

    def on_timer(self, _ctx: ckpt.Context, key: Any, timer: ckpt.Timer) -> Iterator[Any]:  # noqa: ANN401
        """Outputs the rows up to a pause of 10 minutes before the timer."""
        rows = sorted(self.rows.get())
        if not any(timer.at - timedelta(minutes=10) < at <= timer.at for at in rows):
            yield key.user, sum(at <= timer.at for at in rows)
            self.rows.update([at for at in rows if at > timer.at])


class HastySessions(Sessions):
    """As Sessions, but each row deletes the timer before it: it matters whether that one has fired."""

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Any) -> None:  # noqa: ANN401
        """Moves the timer."""
        for row in rows:
            for at in self.rows.get():
                self.ends.delete(at + timedelta(minutes=10))
            self.rows.add(row.at)
            self.ends.register(row.at + timedelta(minutes=10))


class Match(ckpt.KeyedProcessor):
    """Orders that are open by user, and payments that close them."""

    open = ckpt.MapState("open", "bigint", "bigint")

    def process_orders(self, _ctx: ckpt.Context, _key: Any, rows: Any) -> None:  # noqa: ANN401
        """Opens orders."""
        for row in rows:
            self.open.put(row.number, row.price)

    def process_payments(self, _ctx: ckpt.Context, key: Any, rows: Any) -> Iterator[Any]:  # noqa: ANN401
        """Closes orders."""
        for row in rows:
            price = self.open.get(row.number)
            self.open.remove(row.number)
            yield key.user, None if price is None else price - row.amount
