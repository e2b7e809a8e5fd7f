"""Which partition a key lives in, and the column that gets it there.

A key's group is ``hash * max_parallelism >> 32`` of Spark's own hash of its columns; partition p of n owns the
contiguous groups of ``p = group * n // max_parallelism``, as in Flink (KeyGroupRangeAssignment). Spark places groups by
the hash of the grouping column. So rows are grouped by a *route*: for each partition p one small integer whose hash,
modulo n, is p. Spark then makes exactly one group for each partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

SPARK_SEED = 42
_U32 = 0xFFFFFFFF


def murmur3_of_int(value: int) -> int:
    """Spark's hash of an int column (Murmur3_x86_32.hashInt, seed 42), as a signed number."""
    k = (value & _U32) * 0xCC9E2D51 & _U32
    k = ((k << 15) | (k >> 17)) & _U32
    h = SPARK_SEED ^ (k * 0x1B873593 & _U32)
    h = ((h << 13) | (h >> 19)) & _U32
    h = (h * 5 + 0xE6546B64) & _U32
    h ^= 4  # bytes hashed
    h ^= h >> 16
    h = h * 0x85EBCA6B & _U32
    h ^= h >> 13
    h = h * 0xC2B2AE35 & _U32
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


def routes(partitions: int) -> list[int]:
    """For each partition of so many, the smallest integer from 0 on that Spark places there."""
    found: dict[int, int] = {}
    candidate = 0
    while len(found) < partitions:
        found.setdefault(murmur3_of_int(candidate) % partitions, candidate)
        candidate += 1
    return [found[partition] for partition in range(partitions)]


def route_column(hash_name: str, partitions: int, max_parallelism: int) -> Column:
    """The route of a row, from the column that has its hash."""
    from pyspark.sql import functions as f

    unsigned = f.col(hash_name).cast("long").bitwiseAND(f.lit(_U32).cast("long"))
    group = f.shiftright(unsigned * f.lit(max_parallelism).cast("long"), 32)
    partition = f.floor(group * f.lit(partitions) / f.lit(max_parallelism)).cast("int")
    return f.element_at(f.array(*map(f.lit, routes(partitions))), partition + 1)
