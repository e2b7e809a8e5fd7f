"""The broadcast input of a keyed operator: its frame, and its rows on their way to all partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark_ckpt.operators.declarations.operator import (
    BROADCAST,
    BROADCAST_NAME,
    HASH,
    INPUT,
    NEVER_LATE,
    ROUTE,
    row_column,
)
from pyspark_ckpt.operators.frames import Columns, find_names, require_frame
from pyspark_ckpt.operators.plan import KeyedColumns
from pyspark_ckpt.state_store.errors import InvalidInputError
from pyspark_ckpt.state_store.format.spark_groups import find_routes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pyspark_ckpt.operators.declarations.operator import KeyedOperator


@dataclass(frozen=True)
class BroadcastInput:
    """A streaming frame whose rows go to all partitions, and the order of its rows within a batch.

    ``order_by`` is as for ``keyed``. Rows that it does not order have a fixed order, the same in all partitions.
    """

    frame: DataFrame
    order_by: str | Sequence[str] = ()


def read_broadcast(given: Any, who: str) -> tuple[KeyedColumns, DataFrame] | tuple[None, None]:
    """Return the columns and the frame of the broadcast input that a user gave. Raises InvalidInputError."""
    if given is None:
        return None, None
    who = f"{who}: the broadcast input"
    frame = given.frame if isinstance(given, BroadcastInput) else given
    require_frame(frame, who, "Give a streaming DataFrame, or BroadcastInput(frame, order_by='...').")
    if not frame.isStreaming:
        raise InvalidInputError(
            f"{who} is not a stream.", hint="Read the frame with spark.readStream, or join it to an input."
        )
    columns = Columns.of(frame)
    order = given.order_by if isinstance(given, BroadcastInput) else ()
    return KeyedColumns(BROADCAST_NAME, columns.schema, (), find_names(columns, order, who, "to order by")), frame


def add_broadcast_rows(routed: DataFrame, broadcast: DataFrame, operator: KeyedOperator) -> DataFrame:
    """Return the routed rows of the other inputs, and the rows of ``broadcast`` once for each partition.

    Rows become bytes before they are repeated. They are never late.
    """
    from pyspark.sql import functions as f

    row, routes = row_column(BROADCAST), f.array(*map(f.lit, find_routes(operator.partitions)))
    rows = broadcast.select(f.call_function("ckpt_row", f.col("*")).alias(row))
    marked = rows.select(row, f.lit(0).alias(HASH), f.lit(BROADCAST).cast("byte").alias(INPUT))
    if operator.time in routed.columns:
        marked = marked.withColumn(operator.time, f.lit(NEVER_LATE))
    repeated = marked.select("*", f.explode(routes).alias(ROUTE))
    return routed.unionByName(repeated, allowMissingColumns=True)
