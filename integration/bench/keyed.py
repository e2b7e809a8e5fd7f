"""Count and sum per key in every form that Python has for it, on Spark's state and on ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark_ckpt import operators as ckpt

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

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


def _added(ctx: ckpt.VectorContext, batch: pa.Table) -> tuple[Any, Any]:
    import numpy as np

    rows = np.bincount(ctx.key_index, minlength=len(ctx.keys))
    total = np.zeros(len(ctx.keys), np.int64)
    np.add.at(total, ctx.key_index, batch.column("amount").to_numpy())
    return rows, total


def _keyed(processor: ckpt.KeyedProcessor | ckpt.VectorProcessor) -> Query:
    return lambda _spark, frames: ckpt.keyed(frames[0].select("key", "amount"), "key", uid="totals").process(
        processor, OUTPUT
    )


def _grouped(_spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
    def totals(key: tuple[Any, ...], chunks: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        import pandas as pd

        rows, total = state.get if state.exists else (0, 0)
        for chunk in chunks:
            rows += len(chunk)
            total += int(chunk["amount"].sum())
        state.update((rows, total))
        yield pd.DataFrame({"key": [key[0]], "rows": [rows], "total": [total]})

    frame = frames[0].select("key", "amount")
    return frame.groupBy("key").applyInPandasWithState(
        totals, OUTPUT, "rows bigint, total bigint", "update", "NoTimeout"
    )


def _transformed(_spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Totals(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.totals = handle.getValueState("totals", "rows bigint, total bigint")

        def handleInputRows(self, key: Any, rows: Any, _timers: Any) -> Iterator[Row]:  # noqa: ANN401, N802 - Spark's name
            count, total = self.totals.get() or (0, 0)
            for row in rows:
                count += 1
                total += row.amount
            self.totals.update((count, total))
            yield Row(key=key[0], rows=count, total=total)

        def close(self) -> None:
            pass

    frame = frames[0].select("key", "amount")
    return frame.groupBy("key").transformWithState(Totals(), OUTPUT, "Update", "None")


FORMS: Mapping[str, Query] = {
    "vectorised": _keyed(Vectorised()),
    "per key": _keyed(PerKey()),
    "without state": _keyed(Stateless()),
    "applyInPandasWithState": _grouped,
    "transformWithState": _transformed,
}
"""Forms of the query beside Spark's own aggregation."""
