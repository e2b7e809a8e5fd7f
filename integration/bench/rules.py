"""Count and sum per key, with a limit for each key from 10,000 broadcast rules, or without rules."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import pyspark_ckpt as ckpt
from integration.bench.keyed import OUTPUT, Vectorised

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Query: TypeAlias = Callable[["SparkSession", Sequence["DataFrame"]], "DataFrame"]

RULES = 10_000


class Limited(Vectorised):
    """Amounts of a key count up to its limit."""

    limits = ckpt.BroadcastState("limits", "bigint", "bigint")

    def process_broadcast_batch(self, _ctx: ckpt.Context, batch: pa.Table) -> None:
        """Take the rules."""
        self.limits.put_entries(batch["rule"], batch["highest"])

    def process_batch(self, ctx: ckpt.VectorContext, batch: pa.Table) -> pa.Table:
        """Look up the limit of each row's key."""
        rule = pa.array(batch["key"].to_numpy() % RULES)
        highest = self.limits.get_entries(rule)
        amount = pc.min_element_wise(batch["amount"], highest)
        return super().process_batch(ctx, batch.set_column(batch.column_names.index("amount"), "amount", amount))


def with_rules(spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
    """Read all rules in the first batch."""
    folder = Path(tempfile.mkdtemp(prefix="pyspark-ckpt-rules-"))
    rules = np.arange(RULES)
    pq.write_table(pa.table({"rule": rules, "highest": rules % 1000}), folder / "rules.parquet")
    frame = spark.readStream.schema("rule bigint, highest bigint").parquet(str(folder))
    return ckpt.keyed(_rows(frames), "key", uid="totals", broadcast=frame).process(Limited(), OUTPUT)


def without_rules(_spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
    """Do the same without limits."""
    return ckpt.keyed(_rows(frames), "key", uid="totals").process(Vectorised(), OUTPUT)


def _rows(frames: Sequence[DataFrame]) -> DataFrame:
    return frames[0].select("key", "amount")


FORMS: Mapping[str, Query] = {"with rules": with_rules, "without rules": without_rules}
"""Forms of the query."""
