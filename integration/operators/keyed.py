"""Queries with a keyed operator, run over the files of a source; the processors that many tests share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import pyspark_ckpt as ckpt
from integration.operators import inputs
from integration.operators.providers import OURS
from integration.operators.replay import Case, collect_into, run, write_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from integration.operators.replay import Lines, Query
    from integration.operators.sources import Source


EVENTS = inputs.events(seed=31, rows=60)
TOTALS = "user int, rows bigint, total bigint"


def play(
    spark: SparkSession,
    query: Query,
    source: Source,
    folder: Path,
    mode: str = "update",
    settings: Any = None,  # noqa: ANN401
) -> Mapping[int, Lines]:
    """Run a query over all files of ``source``, with a restart in the middle; the rows of every batch."""
    case = Case(query, (source,), output_mode=mode)
    session = OURS.session(spark, **(settings or {}))
    batches: dict[int, Lines] = {}
    for first, last in ((0, 2), (2, len(source.batches))):
        write_inputs(case, folder, first, last)
        run(session, case, folder, collect_into(batches))
    return batches


def play_until(
    done: Callable[[], bool],
    spark: SparkSession,
    case: Case,
    folder: Path,
    each_batch: Callable[[DataFrame, int], None],
) -> None:
    """Run a query with a batch at every trigger until it has done and committed something, or for a minute."""
    begun = [-1]

    def collect(frame: DataFrame, batch_id: int) -> None:
        begun.append(batch_id)
        each_batch(frame, batch_id)

    frames = [source.stream(spark, folder / f"input{number}") for number, source in enumerate(case.sources)]
    writer = case.query(frames).writeStream.outputMode(case.output_mode).foreachBatch(collect)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    running = writer.trigger(processingTime="0 seconds").start()
    deadline, last = time.monotonic() + 60, 1 << 63
    try:
        while begun[-1] <= last and time.monotonic() < deadline:
            assert running.isActive, running.exception()
            time.sleep(0.05)
            last = min(last, begun[-1]) if done() else last
    finally:
        running.stop()


def keyed(processor: Any, output: str, by: str | Sequence[str] = "user", **more: Any) -> Query:  # noqa: ANN401
    return lambda frames: ckpt.keyed(frames[0], by, uid="it", **more).process(processor, output)


class Totals(ckpt.KeyedProcessor):
    """Rows and sum of a user, one key after the other."""

    rows = ckpt.ValueState("rows", "bigint", default=0)
    total = ckpt.ValueState("total", int, default=0)

    def process(self, _ctx: ckpt.Context, key: Any, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:  # noqa: ANN401
        self.rows.update(self.rows.value() + len(rows))
        self.total.update(self.total.value() + sum(row.id for row in rows))
        yield key.user, self.rows.value(), self.total.value()


class VectorTotals(ckpt.VectorProcessor):
    """The same for all users at once."""

    totals = ckpt.ValueState("totals", "struct<rows bigint, total bigint>")

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        old = self.totals.get(ctx.keys)
        rows = np.bincount(ctx.key_index, minlength=len(ctx.keys))
        total = np.zeros(len(ctx.keys), np.int64)
        np.add.at(total, ctx.key_index, batch.column("id").to_numpy())
        rows = pc.add(rows, old.field("rows").fill_null(0))
        total = pc.add(total, old.field("total").fill_null(0))
        self.totals.put(ctx.keys, pa.StructArray.from_arrays([rows, total], fields=list(old.type)))
        return pa.table({"total": total, "user": ctx.keys.column("user"), "rows": rows})


class Unchanged(ckpt.KeyedProcessor):
    """Puts out every row as it came, and the one before, out of its state."""

    def process(self, _ctx: ckpt.Context, _key: Any, rows: Sequence[Any]) -> Sequence[Any]:  # noqa: ANN401
        return rows
