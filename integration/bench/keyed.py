"""Count and sum per key in every form that Python has for it, on Spark's state and on ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyspark_ckpt as ckpt

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

Query: TypeAlias = Callable[["SparkSession", Sequence["DataFrame"]], "DataFrame"]

OUTPUT = "key bigint, rows bigint, total bigint"


class PerKey(ckpt.KeyedProcessor):
    """One key after the other."""

    totals = ckpt.ValueState("totals", "struct<rows bigint, total bigint>")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        """Add the key's rows."""
        count, total = self.totals.value() or (0, 0)
        count += len(rows)
        total += sum([row.amount for row in rows])
        self.totals.update((count, total))
        yield key.key, count, total


class Vectorised(ckpt.VectorProcessor):
    """All keys at once."""

    totals = ckpt.ValueState("totals", "struct<rows bigint, total bigint>")

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        """Add all rows."""
        import pyarrow as pa
        import pyarrow.compute as pc

        rows, total = _added(ctx, batch)
        old = self.totals.get(ctx.keys)
        rows = pc.add(rows, old.field("rows").fill_null(0))
        total = pc.add(total, old.field("total").fill_null(0))
        self.totals.put(ctx.keys, pa.StructArray.from_arrays([rows, total], fields=list(old.type)))
        return pa.table({"key": ctx.keys.column("key"), "rows": rows, "total": total})


class Stateless(ckpt.VectorProcessor):
    """The same without state."""

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        """Count and sum the rows of this batch."""
        import pyarrow as pa

        rows, total = _added(ctx, batch)
        return pa.table({"key": ctx.keys.column("key"), "rows": rows, "total": total})


class Passing(Vectorised):
    """The same state, and all rows as they came: what comes next has as much to do."""

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        """Add all rows, and output them."""
        super().process_batch(ctx, batch)
        return batch.select(["key", "amount"])


def _chain(length: int) -> Query:
    """Build a query of so many operators, one after the other."""

    def query(_spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
        frame = frames[0].select("key", "amount")
        for number in range(length):
            frame = ckpt.keyed(frame, "key", uid=f"totals {number}").process(Passing(), "key bigint, amount bigint")
        return frame

    return query


def _added(ctx: ckpt.VectorContext, batch: pa.Table) -> tuple[Any, Any]:
    import numpy as np

    rows = np.bincount(ctx.key_index, minlength=len(ctx.keys))
    total = np.zeros(len(ctx.keys), np.int64)
    np.add.at(total, ctx.key_index, batch.column("amount").to_numpy())
    return rows, total


def _keyed(
    processor: ckpt.KeyedProcessor | ckpt.VectorProcessor,
    of: Callable[[DataFrame], DataFrame] = lambda frame: frame.select("key", "amount"),
) -> Query:
    return lambda _spark, frames: ckpt.keyed(of(frames[0]), "key", uid="totals").process(processor, OUTPUT)


def _whole(frame: DataFrame) -> DataFrame:
    return frame


def _watched(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("at", "1 minute")


def _totals(key: tuple[Any, ...], chunks: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    import pandas as pd

    rows, total = state.get if state.exists else (0, 0)
    for chunk in chunks:
        rows += len(chunk)
        total += int(chunk["amount"].sum())
    state.update((rows, total))
    yield pd.DataFrame({"key": [key[0]], "rows": [rows], "total": [total]})


def _grouped(_spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
    frame = frames[0].select("key", "amount")
    return frame.groupBy("key").applyInPandasWithState(
        _totals, OUTPUT, "rows bigint, total bigint", "update", "NoTimeout"
    )


def _make_totals(*, of_frames: bool) -> StatefulProcessor:
    """A processor for transformWithState that takes rows, or frames."""
    import pandas as pd
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Totals(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.totals = handle.getValueState("totals", "rows bigint, total bigint")

        def handleInputRows(self, key: Any, rows: Any, _timers: Any) -> Iterator[Any]:  # noqa: ANN401, N802 - Spark's name
            count, total = self.totals.get() or (0, 0)
            for row in rows:
                count += 1
                total += row.amount
            self.totals.update((count, total))
            yield Row(key=key[0], rows=count, total=total)

        def close(self) -> None:
            pass

    class FrameTotals(Totals):
        def handleInputRows(self, key: Any, rows: Any, _timers: Any) -> Iterator[Any]:  # noqa: ANN401, N802
            count, total = self.totals.get() or (0, 0)
            for frame in rows:
                count += len(frame)
                total += int(frame["amount"].sum())
            self.totals.update((count, total))
            yield pd.DataFrame({"key": [key[0]], "rows": [count], "total": [total]})

    return FrameTotals() if of_frames else Totals()


def _transformed(_spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
    by_key = frames[0].select("key", "amount").groupBy("key")
    return by_key.transformWithState(_make_totals(of_frames=False), OUTPUT, "Update", "None")


def _transformed_in_pandas(_spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
    by_key = frames[0].select("key", "amount").groupBy("key")
    return by_key.transformWithStateInPandas(_make_totals(of_frames=True), OUTPUT, "Update", "None")


def _transformed_here(_spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
    by_key = ckpt.keyed(frames[0].select("key", "amount"), "key", uid="totals")
    return by_key.transform_with_state(_make_totals(of_frames=False), OUTPUT, "Update", "None")


def _transformed_in_pandas_here(_spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
    by_key = ckpt.keyed(frames[0].select("key", "amount"), "key", uid="totals")
    return by_key.transform_with_state_in_pandas(_make_totals(of_frames=True), OUTPUT, "Update", "None")


def _mapped(_spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
    """Count and sum a batch by Spark's mapInArrow, after the same shuffle."""

    def add(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        table = pa.Table.from_batches(list(batches), pa.schema([("key", pa.int64()), ("amount", pa.int64())]))
        added = table.group_by("key").aggregate([([], "count_all"), ("amount", "sum")])
        yield from added.rename_columns(["key", "rows", "total"]).to_batches()

    return frames[0].select("key", "amount").repartition("key").mapInArrow(add, OUTPUT)


class SeveralStates(ckpt.VectorProcessor):
    """Rows, the latest amounts and a count for each minute, all of which are forgotten in time."""

    rows = ckpt.ReducingState("rows", "bigint", "sum", ttl="1 day")
    latest = ckpt.ListState("latest", "bigint", ttl="10 seconds")
    minutes = ckpt.MapState("minutes", "bigint", "bigint", ttl="1 hour")

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        """Take all rows."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        self.rows.add_rows(ctx.keys, ctx.key_index, pa.array(np.ones(len(batch), np.int64)))
        self.latest.add_rows(ctx.keys, ctx.key_index, batch.column("amount"))
        minute = pc.divide(batch.column("at").cast(pa.int64()), 60_000_000).combine_chunks()
        pairs = (
            pa.table({"key": ctx.key_index, "minute": minute})
            .group_by(["key", "minute"])
            .aggregate([([], "count_all")])
        )
        index, keys = pairs.column("key").to_numpy(), pairs.column("minute").combine_chunks()
        old = self.minutes.get_entries(ctx.keys, index, keys).fill_null(0)
        self.minutes.put_entries(ctx.keys, index, keys, pc.add(old, pairs.column("count_all").combine_chunks()))
        total = self.rows.get_values(ctx.keys)
        return pa.table({"key": ctx.keys.column("key"), "rows": total, "total": total})


class SeveralStatesPerKey(ckpt.KeyedProcessor):
    """The same, one key after the other."""

    rows = ckpt.ValueState("rows", "bigint", default=0, ttl="1 day")
    latest = ckpt.ListState("latest", "bigint", ttl="10 seconds")
    minutes = ckpt.MapState("minutes", "bigint", "bigint", ttl="1 hour")

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        """Take the key's rows."""
        total = self.rows.value() + len(rows)
        self.rows.update(total)
        self.latest.add_all([row.amount for row in rows])
        for row in rows:
            minute = int(row.at.timestamp()) // 60
            self.minutes.put(minute, self.minutes.get(minute, 0) + 1)
        yield key.key, total, total


def _pickled(_spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
    def take(key: tuple[Any, ...], chunks: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        import pickle

        import pandas as pd

        now = state.getCurrentProcessingTimeMs()
        total, latest, minutes = pickle.loads(state.get[0]) if state.exists else (0, [], {})  # noqa: S301 - its own
        for chunk in chunks:
            total += len(chunk)
            latest.extend((now, amount) for amount in chunk["amount"])
            for at in chunk["at"]:
                minute = int(at.timestamp()) // 60
                minutes[minute] = (now, minutes.get(minute, (0, 0))[1] + 1)
        latest = [each for each in latest if each[0] > now - 10_000]
        minutes = {minute: each for minute, each in minutes.items() if each[0] > now - 3_600_000}
        state.update((pickle.dumps((total, latest, minutes)),))
        yield pd.DataFrame({"key": [key[0]], "rows": [total], "total": [total]})

    return frames[0].groupBy("key").applyInPandasWithState(take, OUTPUT, "all binary", "update", "NoTimeout")


class ManyTimers(ckpt.VectorProcessor):
    """A timer for every key, years ahead."""

    wait = ckpt.Timers("wait", clock="event")

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> None:
        """Register the timers."""
        from datetime import timedelta

        import pyarrow as pa
        import pyarrow.compute as pc

        self.wait.register_rows(ctx.keys, ctx.key_index, pc.add(batch.column("at"), pa.scalar(timedelta(days=3650))))

    def process_timers(self, ctx: ckpt.VectorContext, timers: pa.Table) -> None:
        """Never called."""
        raise AssertionError(f"{len(timers)} timers of {len(ctx.keys)} keys fired")


class NoTimers(ManyTimers):
    """None of them."""

    def process_batch(self, _ctx: ckpt.VectorContext, _batch: pa.Table) -> None:
        """Nothing."""


def _unchanged(_spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
    return ckpt.keyed(frames[0].select("key", "amount"), "key", uid="totals").apply_in_pandas_with_state(
        _totals, OUTPUT, "rows bigint, total bigint", "update", "NoTimeout"
    )


FORMS: Mapping[str, Query] = {
    "vectorised": _keyed(Vectorised()),
    "per key": _keyed(PerKey()),
    "without state": _keyed(Stateless()),
    "mapInArrow": _mapped,
    "unchanged": _unchanged,
    "applyInPandasWithState": _grouped,
    "transformWithState": _transformed,
    "transformWithStateInPandas": _transformed_in_pandas,
    "transformWithState, here": _transformed_here,
    "transformWithStateInPandas, here": _transformed_in_pandas_here,
    "several states": _keyed(SeveralStates(), _whole),
    "several states, per key": _keyed(SeveralStatesPerKey(), _whole),
    "one pickled state": _pickled,
    "many timers": _keyed(ManyTimers(), _watched),
    "no timers": _keyed(NoTimers(), _watched),
    "one operator": _chain(1),
    "two operators": _chain(2),
}
"""Forms of the query beside Spark's own aggregation."""
