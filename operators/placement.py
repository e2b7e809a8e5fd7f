"""The partition that a key lives in, and the column that routes its rows there.

A key's group is ``hash * max_parallelism >> 32``, where ``hash`` is Spark's own hash of the key columns. Partition p of
n owns the contiguous groups for which ``p = group * n // max_parallelism``, as in Flink (KeyGroupRangeAssignment).
Spark places a group by the hash of its grouping column. Rows are therefore grouped by a *route*: for each partition p,
one small integer whose hash modulo n is p. Spark then makes exactly one group per partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_ckpt.state_store.format.spark_groups import find_routes

if TYPE_CHECKING:
    from pyspark.sql import Column

_U32 = 0xFFFFFFFF


def route_column(hash_name: str, partitions: int, max_parallelism: int) -> Column:
    """Return the route of a row, computed from the column ``hash_name``, which has the hash of its key."""
    from pyspark.sql import functions as f

    unsigned = f.col(hash_name).cast("long").bitwiseAND(f.lit(_U32).cast("long"))
    group = f.shiftright(unsigned * f.lit(max_parallelism).cast("long"), 32)
    partition = f.floor(group * f.lit(partitions) / f.lit(max_parallelism)).cast("int")
    return f.element_at(f.array(*map(f.lit, find_routes(partitions))), partition + 1)
