"""Which partition a key lives in, and the column that gets it there.

A key's group is ``hash * max_parallelism >> 32`` of Spark's own hash of its columns; partition p of n owns the
contiguous groups of ``p = group * n // max_parallelism``, as in Flink (KeyGroupRangeAssignment). Spark places groups by
the hash of the grouping column. So rows are grouped by a *route*: for each partition p one small integer whose hash,
modulo n, is p. Spark then makes exactly one group for each partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_ckpt.state_store.format.routes import routes

if TYPE_CHECKING:
    from pyspark.sql import Column

_U32 = 0xFFFFFFFF


def route_column(hash_name: str, partitions: int, max_parallelism: int) -> Column:
    """The route of a row, from the column that has its hash."""
    from pyspark.sql import functions as f

    unsigned = f.col(hash_name).cast("long").bitwiseAND(f.lit(_U32).cast("long"))
    group = f.shiftright(unsigned * f.lit(max_parallelism).cast("long"), 32)
    partition = f.floor(group * f.lit(partitions) / f.lit(max_parallelism)).cast("int")
    return f.element_at(f.array(*map(f.lit, routes(partitions))), partition + 1)
