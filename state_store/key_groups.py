"""Key groups: the units in which state moves between partitions.

A row's group is ``hash * max_parallelism >> 32``, of the unsigned hash in its key. Keyed operators give partition p of
n the contiguous groups g with ``g * n // max_parallelism == p``, as in Flink (KeyGroupRangeAssignment). Spark places
the rows of its own operators by the remainder of the hash, so that each of their partitions has rows of all groups.
"""

from __future__ import annotations

from pyspark_ckpt.state_store.meta import StoreMeta

MAX_PARALLELISM = 32768
HASHES = 1 << 32


def owned_groups(partition: int, partitions: int, max_parallelism: int) -> tuple[int, int]:
    """First group of a keyed operator's partition, and the one behind its last."""
    first, end = partition * max_parallelism, (partition + 1) * max_parallelism
    return -(-first // partitions), -(-end // partitions)


def hashes_of(groups: tuple[int, int], max_parallelism: int) -> tuple[int, int]:
    """First hash of a range of groups, and the one behind its last."""
    first, end = (-(-group * HASHES // max_parallelism) for group in groups)
    return first, end


def stored_groups(meta: StoreMeta, partition: int) -> tuple[int, tuple[int, int]]:
    """Max parallelism of a store, and the groups that its rows can be of."""
    for state in meta.states:
        encoder = state.descriptor.key_encoder
        if isinstance(encoder, dict) and "max_parallelism" in encoder and meta.num_partitions:
            parallelism = int(encoder["max_parallelism"])
            return parallelism, owned_groups(partition, meta.num_partitions, parallelism)
    return MAX_PARALLELISM, (0, MAX_PARALLELISM)
